"""What worker processes hand over, and how they end."""

import errno
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from scalefold.config.schema import FeaturesConfig
from scalefold.loader.prepare import Preparation, SampleError, SampleTask
from scalefold.loader.worker import WorkerPool

PARENT = """
import os
import signal
import sys

sys.path.insert(0, sys.argv[1])
from made_up_reader import Reader

from scalefold.config.schema import FeaturesConfig
from scalefold.loader.prepare import Preparation, SampleError, SampleTask
from scalefold.loader.worker import WorkerPool

if __name__ == "__main__":
    pool = WorkerPool(2, Preparation(Reader(), FeaturesConfig(crop_size=16), 0, True))
    pool.submit(SampleTask(0, "1aaa_A", 1)).result()
    print(*(worker.process.pid for worker in pool._workers), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"  # an orphan that has ended but is not yet reaped


def test_workers_outlive_no_killed_parent(reader_type, tmp_path):
    folder = Path(sys.modules[reader_type.__module__].__file__).parent
    script = tmp_path / "parent.py"
    script.write_text(textwrap.dedent(PARENT), "utf-8")
    result = subprocess.run(
        [sys.executable, str(script), str(folder)], capture_output=True, text=True
    )
    assert result.returncode == -9, result.stderr
    pids = [int(pid) for pid in result.stdout.split()]
    assert len(pids) == 2
    while any(map(alive, pids)):  # within the time that a test has
        time.sleep(0.1)


def test_a_worker_that_cannot_be_started_again_is_an_error(reader_type, tmp_path, monkeypatch):
    """Where memory has run out, which a worker was killed for, there is none for another."""
    held = reader_type(behaviour=dict.fromkeys(("1aaa_A", "1bbb_A"), "held"), marks=tmp_path)
    pool = WorkerPool(1, Preparation(held, FeaturesConfig(crop_size=16), 0, False))
    try:
        keys = held.keys[:2]
        results = [pool.submit(SampleTask(draw, key, 1)) for draw, key in enumerate(keys)]

        def no_memory(process):
            raise OSError(errno.ENOMEM, "Cannot allocate memory")

        process = pool._workers[0].process
        monkeypatch.setattr(type(process), "start", no_memory)
        process.kill()
        for result in results:
            with pytest.raises(SampleError, match="no other"):
                result.result()
        later = pool.submit(SampleTask(2, held.keys[2], 1))
        with pytest.raises(SampleError, match="no other"):
            later.result()
    finally:
        pool.close()


def check_equal(found: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected)
    elif isinstance(expected, tuple):
        for ours, other in zip(found, expected, strict=True):
            check_equal(ours, other)
    else:
        assert found == expected


def test_what_cannot_be_sent_is_an_error_and_spoils_nothing_else(reader_type):
    unsendable = sys.modules[reader_type.__module__].Unsendable
    preparation = unsendable(reader_type(), FeaturesConfig(crop_size=16), 0, False)
    tasks = [SampleTask(draw, preparation.reader.keys[draw % 2], 1) for draw in range(8)]
    pool = WorkerPool(1, preparation)
    try:
        results = [pool.submit(task) for task in tasks]
        for task, result in zip(tasks[::2], results[::2], strict=True):
            inputs = result.result().open(torch.device("cpu"))
            check_equal(inputs, preparation.read(task))
        for result in results[1::2]:
            with pytest.raises(SampleError, match="pickle"):
                result.result()
    finally:
        pool.close()


@pytest.mark.parametrize("max_msa_clusters", [4, 12, 16])
def test_inputs_of_features_arrive_as_they_were_made(reader_type, max_msa_clusters):
    """With more centres than the 12 rows, no row is left to be clustered: empty arrays."""
    config = FeaturesConfig(crop_size=16, max_msa_clusters=max_msa_clusters, max_extra_msa=6)
    reader = reader_type()
    preparation = Preparation(reader, config, 0, make_features=False)
    tasks = [SampleTask(draw, reader.keys[draw % 3], 4) for draw in range(12)]
    pool = WorkerPool(1, preparation)
    try:
        results = [pool.submit(task) for task in tasks]
        for task, result in zip(tasks, results, strict=True):
            inputs = result.result().open(torch.device("cpu"))
            check_equal(inputs, preparation.read(task))
    finally:
        pool.close()
