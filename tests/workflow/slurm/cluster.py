"""A real Slurm cluster on one machine: munge, MariaDB, slurmdbd, slurmctld, and one slurmd a node.

Nothing is contained: jobs run as root, CPUs are not bound, GPUs are empty files. What Slurm decides
and records is as on a cluster: allocations, time limits, signals, preemption, requeueing, accounts.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

NAME = "test"
NODES, CPUS, GPUS, MEMORY_MB = 4, 4, 2, 8000
PROGRAMS = ("munged", "mariadbd", "slurmdbd", "slurmctld", "slurmd", "sbatch", "sacct")
ETC = Path("/etc/slurm")
"""Jobs know no other place: Snakemake takes SLURM_CONF from their environment."""
MARK = "# Written by ScaleFold's tests."
HANG_SECONDS = 1500
"""No wait on a busy machine takes so long; below pytest's limit, so that the test says for what."""


def obstacle() -> str | None:
    """Say why no cluster can be brought up here, or None."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    missing = [name for name in PROGRAMS if shutil.which(name, path=_PATH) is None]
    if missing:
        return f"not installed: {', '.join(missing)}; tests/workflow/slurm/install.sh installs them"
    if succeeds("munge", "-n"):
        return "a munge is at work, perhaps for another cluster"
    configuration = ETC / "slurm.conf"
    if configuration.exists() and MARK not in configuration.read_text():
        return f"{configuration} is of another cluster, which stays untouched"
    return None


_PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin"])


@dataclass(frozen=True)
class Record:
    """What the accounting says of a job.

    Attributes
    ----------
    job : int
    rule : str
        Of the workflow, with the wildcards where there are some.
    state : str
    start, end : datetime or None
    nodes : str
    """

    job: int
    rule: str
    state: str
    start: datetime | None
    end: datetime | None
    nodes: str


@dataclass
class Cluster:
    """The daemons, their files in ``folder``, and what tests ask of them."""

    folder: Path
    _processes: list[int] = field(default_factory=list)

    # --- up and down ------------------------------------------------------------------------------

    def start(self) -> None:
        """Bring all up; returns when every node is idle."""
        for name in ("log", "run", "state", "database"):
            (self.folder / name).mkdir(parents=True)
        for number in range(GPUS):
            (self.folder / f"run/gpu{number}").touch()
        self._start_munge()
        self._start_database()
        ETC.mkdir(exist_ok=True)
        for name, text in self._configuration().items():
            (ETC / name).write_text(f"{MARK}\n{text}")
            (ETC / name).chmod(0o600)
        self._daemon("slurmdbd")
        wait_for(lambda: succeeds("sacctmgr", "-n", "list", "cluster"), "slurmdbd")
        for what in (f"cluster {NAME}", f"account test Cluster={NAME}", "user root Account=test"):
            subprocess.run(["sacctmgr", "-i", "add", *what.split()], stdout=subprocess.DEVNULL)
        self._daemon("slurmctld")
        for number in range(1, NODES + 1):
            self.start_node(number)
        wait_for(lambda: self.idle_nodes() == NODES, "all nodes")

    def stop(self) -> None:
        """Cancel and kill what runs, and end every daemon by its process id."""
        try:
            subprocess.run(["scancel", "--user=root"], check=False)
            # Slurm follows parents here: a process whose parent has ended it waits for, or loses.
            kill_all(lambda: processes_of_jobs(NAME), "the end of what jobs had started")
            self.clear()
        finally:
            for process in reversed(self._processes):
                end(process)
            for name in ("slurm.conf", "slurmdbd.conf", "gres.conf", "cgroup.conf"):
                (ETC / name).unlink(missing_ok=True)

    def clear(self) -> None:
        """Cancel all jobs."""
        subprocess.run(["scancel", "--user=root"], check=True)
        wait_for(lambda: not ask("squeue", "-h"), "an empty queue")

    def start_node(self, number: int) -> None:
        """Start the daemon of a node."""
        (self.folder / f"spool/node{number}").mkdir(parents=True, exist_ok=True)
        self._daemon("slurmd", "-N", f"node{number}", name=f"slurmd.node{number}")

    def _start_munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        Path("/run/munge").mkdir(mode=0o755, exist_ok=True)
        run = self.folder / "run"
        options = {
            "key-file": key,
            "socket": "/run/munge/munge.socket.2",  # where the clients look
            "pid-file": run / "munged.pid",
            "seed-file": run / "munged.seed",
            "log-file": self.folder / "log/munged.log",
        }
        words = [f"--{name}={value}" for name, value in options.items()]
        self._daemon("munged", "--force", *words)
        wait_for(lambda: succeeds("munge", "-n"), "munge")

    def _start_database(self) -> None:
        data, run = self.folder / "database", self.folder / "run"
        common = ["--no-defaults", "--user=root", f"--datadir={data}"]
        subprocess.run(
            ["mariadb-install-db", *common, "--auth-root-authentication-method=socket"],
            check=True,
            capture_output=True,
        )
        server = [shutil.which("mariadbd", path=_PATH) or "mariadbd", *common]
        server += [f"--socket={run}/mysql.sock", "--port=13306", "--bind-address=127.0.0.1"]
        with (self.folder / "log/mariadbd.log").open("w") as log:
            process = subprocess.Popen(server, stdout=log, stderr=log, start_new_session=True)
        self._processes.append(process.pid)
        client = ["mariadb", "--no-defaults", f"--socket={run}/mysql.sock"]
        wait_for(lambda: succeeds(*client, "-e", "SELECT 1"), "MariaDB")
        statements = ["CREATE DATABASE slurm"]
        for host in ("127.0.0.1", "localhost"):
            statements += [
                f"CREATE USER slurm@'{host}' IDENTIFIED BY 'test'",
                f"GRANT ALL ON slurm.* TO slurm@'{host}'",
            ]
        subprocess.run([*client, "-e", "; ".join(statements)], check=True)

    def _daemon(self, *command: str, name: str | None = None) -> None:
        """Start a program that goes to the background and writes its process id to a file."""
        program = shutil.which(command[0], path=_PATH) or command[0]
        subprocess.run([program, *command[1:]], check=True, capture_output=True)
        path = self.folder / f"run/{name or command[0]}.pid"
        wait_for(lambda: path.is_file() and path.read_text().strip(), command[0])
        self._processes.append(int(path.read_text()))

    def _configuration(self) -> dict[str, str]:
        host, root = socket.gethostname().split(".")[0], self.folder
        slurm = f"""
            ClusterName={NAME}
            SlurmctldHost={host}(127.0.0.1)
            SlurmctldPort=16817
            SlurmUser=root
            SlurmdUser=root
            AuthType=auth/munge
            AuthInfo=cred_expire=5
            StateSaveLocation={root}/state
            SlurmdSpoolDir={root}/spool/%n
            SlurmctldPidFile={root}/run/slurmctld.pid
            SlurmdPidFile={root}/run/slurmd.%n.pid
            SlurmctldLogFile={root}/log/slurmctld.log
            SlurmdLogFile={root}/log/slurmd.%n.log
            SlurmdParameters=config_overrides
            ProctrackType=proctrack/linuxproc
            TaskPlugin=task/none
            SwitchType=switch/none
            MpiDefault=none
            ReturnToService=2
            SelectType=select/cons_tres
            SelectTypeParameters=CR_Core_Memory
            SchedulerType=sched/backfill
            SchedulerParameters=bf_interval=2,sched_min_interval=100000
            PreemptType=preempt/partition_prio
            PreemptMode=REQUEUE
            JobRequeue=1
            KillWait=10
            MinJobAge=300
            GresTypes=gpu
            JobAcctGatherType=jobacct_gather/linux
            AccountingStorageType=accounting_storage/slurmdbd
            AccountingStorageHost=localhost
            AccountingStoragePort=16819
            AccountingStorageTRES=gres/gpu
            AccountingStoreFlags=job_comment
            NodeName=node[1-{NODES}] NodeHostname={host} NodeAddr=127.0.0.1 \
                Port=[17001-{17000 + NODES}] \
                CPUs={CPUS} Boards=1 Sockets=1 CoresPerSocket={CPUS} ThreadsPerCore=1 \
                RealMemory={MEMORY_MB} Gres=gpu:{GPUS}
            PartitionName=cpu Nodes=ALL Default=YES MaxTime=1440 PriorityTier=10 PreemptMode=OFF
            PartitionName=gpu Nodes=ALL MaxTime=1440 PriorityTier=10 GraceTime=30
            PartitionName=urgent Nodes=ALL MaxTime=1440 PriorityTier=20 PreemptMode=OFF
        """
        database = f"""
            AuthType=auth/munge
            DbdHost=localhost
            DbdPort=16819
            SlurmUser=root
            LogFile={root}/log/slurmdbd.log
            PidFile={root}/run/slurmdbd.pid
            StorageType=accounting_storage/mysql
            StorageHost=127.0.0.1
            StoragePort=13306
            StorageUser=slurm
            StoragePass=test
            StorageLoc=slurm
        """
        return {
            "slurm.conf": slurm,
            "slurmdbd.conf": database,
            "gres.conf": f"NodeName=node[1-{NODES}] Name=gpu File={root}/run/gpu[0-{GPUS - 1}]\n",
            "cgroup.conf": "CgroupAutomount=no\n",
        }

    # --- questions --------------------------------------------------------------------------------

    def idle_nodes(self) -> int:
        """Number of nodes without a job."""
        return len(set(ask("sinfo", "-h", "-N", "-t", "idle", "-o", "%N").split()))

    def records(self, rule: str, folder: Path) -> list[Record]:
        """Accounting records of a rule's jobs, a record for each time that one was started.

        ``folder`` is the workflow's, of which there are several on this cluster.
        """
        columns = "JobIDRaw,Comment,State,Start,End,NodeList,WorkDir"
        table = ask("sacct", "-X", "-n", "-P", "-D", "-S", "now-1day", "-o", columns)
        found = []
        for line in table.splitlines():
            job, comment, state, start, end_, nodes, where = line.split("|")
            name = comment.removeprefix("rule_").replace("_wildcards_", " ")
            if name.split(" ")[0] == rule and Path(where) == folder:
                times = (_time(start), _time(end_))
                found.append(Record(int(job), name, state.split(" ")[0], *times, nodes))
        return found

    def nodes_of(self, job: int) -> list[str]:
        """Nodes of a running job."""
        names = ask("squeue", "-h", "-j", str(job), "-o", "%N")
        return ask("scontrol", "show", "hostnames", names).splitlines()

    def states(self, job: int) -> list[str]:
        """How each start of a job ended: more than one if it was queued again."""
        lines = ask("sacct", "-X", "-n", "-D", "-P", "-j", str(job), "-o", "State").splitlines()
        return [line.split(" ")[0] for line in lines]

    def running(self, rule: str) -> list[int]:
        """Ids of a rule's jobs that run now."""
        return self._queued(rule, "RUNNING")

    def pending(self, rule: str) -> list[int]:
        """Ids of a rule's jobs that wait in the queue."""
        return self._queued(rule, "PENDING")

    def _queued(self, rule: str, state: str) -> list[int]:
        lines = ask("squeue", "-h", "-t", state, "-o", "%i %k").splitlines()
        pairs = [line.split(" ") for line in lines]
        names = {int(job): comment.partition("_wildcards_")[0] for job, comment in pairs}
        return [job for job, name in names.items() if name == f"rule_{rule}"]


def _time(text: str) -> datetime | None:
    return None if text in ("Unknown", "None") else datetime.fromisoformat(text)


def ask(*command: str) -> str:
    """Return what a command prints."""
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout.strip()


def succeeds(*command: str) -> bool:
    """Whether a command runs without error."""
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    return done.returncode == 0


def wait_for(condition: Callable[[], object], what: str, seconds: float = HANG_SECONDS) -> None:
    """Wait until a condition is true.

    Raises
    ------
    TimeoutError
        Naming what was waited for.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(0.2)


def processes_of_jobs(cluster: str) -> list[int]:
    """Processes that a cluster's jobs have started, by the environment that all of them inherit."""
    found = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # has ended meanwhile
            if f"SLURM_CLUSTER_NAME={cluster}".encode() in environment.read_bytes().split(b"\0"):
                found.append(int(environment.parent.name))
    return found


def kill_all(find: Callable[[], list[int]], what: str) -> None:
    """Kill processes, and those that they start meanwhile, until none is found.

    Raises
    ------
    TimeoutError
        Naming ``what`` was waited for.
    """

    def none_is_left() -> bool:
        left = find()
        for process in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return not left

    wait_for(none_is_left, what)


def end(process: int) -> None:
    """Terminate one process, and kill it if it stays."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.kill(process, number)
            wait_for(lambda: not _alive(process), f"the end of process {process}", 20)
            return
        except ProcessLookupError:
            return
        except TimeoutError:
            continue


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
