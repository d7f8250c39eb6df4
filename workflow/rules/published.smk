# Which checkpoints are evaluated, and when. With `evaluation.mode: after` it is known from the start,
# and all are evaluated when training has ended. With `async` a checkpoint is taken up while training
# goes on; those that are missing then (a job failed, no workflow was running) follow at its end.
import contextlib
import threading
import time

from snakemake.exceptions import IncompleteCheckpointException
from snakemake.io import flag

ASYNC = CONFIG.evaluation.mode == "async"
SCHEDULED = CONFIG.training.published_steps()


def evaluation(step):
    return f"{RUN}/evaluation/{KEY}/step-{step:08d}.json"


def published():
    """Steps of all checkpoints that were trained on the present shards, rising."""
    data = hashlib.sha256(Path(f"{SHARDS}/manifest.json").read_bytes()).hexdigest()
    marks = Path(TRAINING).glob("step-*.ready")
    found = [
        mark for mark in marks if trained_on(mark, mark.stat().st_mtime_ns) == data
    ]
    return sorted(int(mark.stem.removeprefix("step-")) for mark in found)


@cache
def trained_on(mark, time_ns):
    return json.loads((mark.with_suffix("") / "checkpoint.json").read_text())[
        "data_manifest_sha256"
    ]


class CheckpointNews:
    """Checkpoints of the training that runs now, in the form of a Snakemake queue (`from_queue`).

    Snakemake asks `finished` whether it has been told everything. It has, unless a thread of the main
    process found a checkpoint since. So nothing is to be closed when training ends, however it ends;
    and dry runs and jobs on the cluster, which have no such thread, wait for nothing.
    """

    last_checked = None

    def __init__(self):
        self.found = self.told = ()

    @property
    def finished(self):
        return self.found == self.told

    def tell(self):
        self.told = self.found
        return self.told

    def watch(self, scheduler):
        while True:
            time.sleep(2)
            # Before training runs, the shards may still change, and with them what is out of date.
            if any(job.name == "train" for job in list(scheduler.running)):
                with contextlib.suppress(
                    FileNotFoundError
                ):  # an old one is just set aside
                    self.found = tuple(
                        step for step in published() if step in SCHEDULED
                    )
                if not self.finished:
                    # Wakes it, to ask for news and then to act on them.
                    scheduler._open_jobs.release(2)
            else:
                self.found = self.told


NEWS = CheckpointNews()


def evaluations_so_far(wildcards):
    """Those of the checkpoints published so far; all, once training has ended."""
    try:
        checkpoints.train.get()
    except IncompleteCheckpointException:
        if not NEWS.found:
            raise
        return [evaluation(step) for step in NEWS.tell()]
    NEWS.tell()
    steps = published()
    # A training that reached its target ended between two scheduled steps.
    return [
        evaluation(step) for step in steps if step in SCHEDULED or step == steps[-1]
    ]


EVALUATIONS = (
    flag(evaluations_so_far, "from_queue", NEWS)
    if ASYNC
    else [evaluation(step) for step in SCHEDULED]
)


def ready_mark(wildcards):
    if not ASYNC:
        checkpoints.train.get()
    return f"{TRAINING}/step-{wildcards.step}.ready"


onstart:
    if ASYNC:
        threading.Thread(
            target=NEWS.watch, args=[workflow.scheduler], daemon=True
        ).start()
