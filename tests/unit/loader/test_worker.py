"""Workers end by themselves when their parent is killed."""

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

PARENT = """
import os
import signal
import sys

sys.path.insert(0, sys.argv[1])
from made_up_reader import Reader

from scalefold.config.schema import FeaturesConfig
from scalefold.loader.prepare import Preparation, SampleTask
from scalefold.loader.worker import WorkerPool

if __name__ == "__main__":
    pool = WorkerPool(2, Preparation(Reader(), FeaturesConfig(crop_size=16), 0, True))
    pool.submit(SampleTask(0, "1aaa_A", 1)).result()
    print(*(worker.process.pid for worker in pool._workers), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # an orphan that has ended but is not yet reaped
    state = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
    return state != "Z"


def test_workers_outlive_no_killed_parent(reader_type, tmp_path):
    folder = Path(sys.modules[reader_type.__module__].__file__).parent
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(PARENT), "utf-8")
    result = subprocess.run(
        [sys.executable, str(script), str(folder)], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == -9, result.stderr
    pids = [int(pid) for pid in result.stdout.split()]
    assert len(pids) == 2
    deadline = time.monotonic() + 30
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(map(alive, pids))
