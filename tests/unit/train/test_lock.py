import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scalefold.errors import InputError
from scalefold.train.lock import LOCK_FILE, writer_lock

HOLDER = """
import sys, time
from pathlib import Path
from scalefold.train.lock import writer_lock
with writer_lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with (
            pytest.raises(InputError, match=rf"process {holder.pid} on .*, since "),
            writer_lock(folder),
        ):
            pass
        # Deleting nothing, cleaning nothing: a killed holder leaves the file, not the lock.
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
    finally:
        holder.kill()
        holder.wait()
    with writer_lock(folder):
        assert f"process {os.getpid()} " in (folder / LOCK_FILE).read_text()
    with writer_lock(folder):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with (
        pytest.raises(InputError, match="cannot be written"),
        writer_lock(tmp_path / "file/weights"),
    ):
        pass
