"""One writer, in processes of their own; machines are told apart by what a file says of them."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from scalefold.checkpoint import lock as locks
from scalefold.checkpoint.lock import LOCK_FOLDER, writer_lock
from scalefold.errors import InputError

# Holds the lock of a folder. Further arguments: seconds between beats, and the name of another
# machine that it pretends to run on.
HOLDER = """
import sys
from pathlib import Path
from scalefold.checkpoint import lock
from scalefold.errors import InputError
folder, lock.BEAT_SECONDS, lock.SILENCE_SECONDS = Path(sys.argv[1]), float(sys.argv[2]), 1.0
if len(sys.argv) > 3:
    lock.socket.gethostname = lock._machine = lambda: sys.argv[3]
with lock.writer_lock(folder) as confirm:
    print("held", flush=True)
    for line in sys.stdin:
        if line != "confirm\\n":
            break
        try:
            confirm()
            print("mine", flush=True)
        except InputError as error:
            print(str(error).replace("\\n", " "), flush=True)
print("released", flush=True)
"""


class Holder:
    def __init__(self, folder: Path, beat: float = 0.1, machine: str | None = None) -> None:
        arguments = [str(folder), str(beat), *([machine] if machine else [])]
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, *arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.line() == "held"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, word: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self.line()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def freeze(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)
        os.waitpid(self.process.pid, os.WUNTRACED)  # it beats no more

    def thaw(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that wait it out. Others have a minute: a busy machine may delay a beat."""
    monkeypatch.setattr(locks, "SILENCE_SECONDS", 1.0)


def take(folder: Path) -> None:
    with writer_lock(folder):
        pass


@pytest.fixture
def hold() -> Any:
    holders = []

    def start(*arguments: Any, **more: Any) -> Holder:
        holders.append(Holder(*arguments, **more))
        return holders[-1]

    yield start
    for holder in holders:
        holder.kill()


def test_a_second_writer_is_refused_until_the_first_is_gone(
    hold: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "training"
    holder = hold(folder)
    with pytest.raises(InputError, match=rf"\b{holder.process.pid}\b"):
        take(folder)
    assert holder.say("confirm") == "mine"
    holder.kill()
    with caplog.at_level("INFO"), writer_lock(folder) as confirm:
        assert caplog.text == ""  # noticed at once: no waiting for a sign of life
        confirm()
        (file,) = (folder / LOCK_FOLDER).iterdir()
        assert f"process {os.getpid()} on" in file.read_text()
    with writer_lock(folder):
        pass


def test_a_lock_that_was_given_back_is_free(hold: Any, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").touch()  # so that the lock stays
    holder = hold(tmp_path, machine="elsewhere")
    assert holder.say("release") == "released"
    with writer_lock(tmp_path) as confirm:
        confirm()


@pytest.mark.parametrize("before", [[], ["training.log"], ["step-00000000"]])
def test_nothing_is_left_of_a_lock_that_was_given_back(before: list[str], tmp_path: Path) -> None:
    for name in before:
        (tmp_path / name).touch()
    for _ in range(2):
        with writer_lock(tmp_path) as confirm:
            confirm()
        assert [path.name for path in tmp_path.iterdir()] == before


def test_a_lock_that_is_cleared_between_two_looks_is_free_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    find, seen = locks._numbers, [[1]]  # the first look finds what is gone at the second
    monkeypatch.setattr(locks, "_numbers", lambda of: seen.pop() if seen else find(of))
    with caplog.at_level("INFO"), writer_lock(tmp_path) as confirm:
        confirm()
    assert caplog.text == ""


def test_who_was_taken_over_leaves_the_lock_to_the_other(tmp_path: Path) -> None:
    with writer_lock(tmp_path):
        (tmp_path / LOCK_FOLDER / "2").write_text("the other")
    assert (tmp_path / LOCK_FOLDER / "2").read_text() == "the other"


@pytest.mark.parametrize("name", [".nfs0000000012ab", "1~"])
def test_other_files_beside_the_lock_are_let_be(name: str, tmp_path: Path) -> None:
    """On NFS a file that was deleted while somebody read it is one."""
    other = tmp_path / LOCK_FOLDER / name
    other.parent.mkdir()
    other.touch()
    with writer_lock(tmp_path) as confirm:
        confirm()
        assert {path.name for path in other.parent.iterdir()} == {other.name, "1"}


@pytest.mark.usefixtures("short_silence")
@pytest.mark.parametrize("third", [True, False], ids=["a third holds it", "nobody holds it"])
def test_a_frozen_holder_finds_that_another_has_come_and_gone(
    third: bool, hold: Any, tmp_path: Path
) -> None:
    holder = hold(tmp_path, machine="elsewhere")
    holder.freeze()
    with writer_lock(tmp_path):
        pass
    other = hold(tmp_path) if third else None
    holder.thaw()
    assert "another training run has taken over here" in holder.say("confirm")
    assert holder.say("release") == "released"
    if other is not None:
        assert other.say("confirm") == "mine"


def test_a_holder_on_another_machine_is_believed_while_it_beats(hold: Any, tmp_path: Path) -> None:
    holder = hold(tmp_path, machine="elsewhere")
    with pytest.raises(InputError, match=rf"\b{holder.process.pid}\b.*elsewhere"):
        take(tmp_path)
    assert holder.say("confirm") == "mine"


@pytest.mark.usefixtures("short_silence")
def test_a_dead_machine_loses_its_lock(hold: Any, tmp_path: Path) -> None:
    holder = hold(tmp_path, machine="elsewhere")
    holder.kill()
    started = time.monotonic()
    with writer_lock(tmp_path) as confirm:
        assert time.monotonic() - started >= locks.SILENCE_SECONDS
        confirm()


@pytest.mark.usefixtures("short_silence")
def test_a_frozen_holder_finds_that_it_has_lost_the_lock(hold: Any, tmp_path: Path) -> None:
    holder = hold(tmp_path, machine="elsewhere")
    holder.freeze()
    with writer_lock(tmp_path):
        holder.thaw()
        assert f"another training run has taken over here (process {os.getpid()}" in holder.say(
            "confirm"
        )
        assert holder.say("release") == "released"
        with pytest.raises(InputError, match="another training run"):
            take(tmp_path)


@pytest.mark.usefixtures("short_silence")
def test_a_holder_that_wakes_up_during_a_takeover_keeps_the_lock(
    hold: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = hold(tmp_path, machine="elsewhere")
    holder.freeze()
    make_after = locks._make_after

    def waking(former: str, files: Path, own: str) -> Any:
        holder.thaw()
        while locks.sign_of_life(tmp_path) == former:
            time.sleep(0.01)
        return make_after(former, files, own)

    monkeypatch.setattr(locks, "_make_after", waking)
    with pytest.raises(InputError, match="elsewhere"):
        take(tmp_path)
    assert holder.say("confirm") == "mine"


def test_many_at_once_one_succeeds(tmp_path: Path, hold: Any) -> None:
    hold(tmp_path).kill()
    command = [sys.executable, "-c", HOLDER, str(tmp_path), "0.1"]
    processes = [
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(6)
    ]
    try:
        said = [process.stdout.readline() for process in processes]
        assert sorted(said) == [*[b""] * 5, b"held\n"]
        for process, line in zip(processes, said, strict=True):
            if not line:
                assert b"another training run writes here" in process.stderr.read()
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.parametrize("folder", ["file", "file/training"])
def test_a_file_in_the_way_is_named(folder: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InputError, match=f"{file}"):
        take(tmp_path / folder)


@pytest.mark.parametrize("code", [errno.EACCES, errno.ENOSPC, errno.ENOENT])
def test_a_folder_that_cannot_be_made_is_named(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(Path, "mkdir", refuse)
    lock = tmp_path / "runs/training" / LOCK_FOLDER
    with pytest.raises(InputError, match=rf"{lock}: .*{os.strerror(code)}"):
        take(tmp_path / "runs/training")


@pytest.mark.usefixtures("short_silence")
@pytest.mark.parametrize("text", ["", "{}\n7\n"])
def test_a_file_without_a_name_is_watched_like_a_holder_elsewhere(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / LOCK_FOLDER).mkdir()
    (tmp_path / LOCK_FOLDER / "7").write_text(text)
    with writer_lock(tmp_path):
        assert [path.name for path in (tmp_path / LOCK_FOLDER).iterdir()] == ["8"]


def test_a_process_that_has_the_number_of_one_that_is_gone_is_not_taken_for_it(
    hold: Any, tmp_path: Path
) -> None:
    holder = hold(tmp_path)
    holder.kill()
    (file,) = (tmp_path / LOCK_FOLDER).iterdir()
    file.write_text(file.read_text().replace(str(holder.process.pid), str(os.getpid())))
    with writer_lock(tmp_path) as confirm:
        confirm()


def test_a_holder_that_nobody_has_waited_for_is_gone(hold: Any, tmp_path: Path) -> None:
    holder = hold(tmp_path)
    holder.process.kill()
    os.waitid(os.P_PID, holder.process.pid, os.WEXITED | os.WNOWAIT)  # a zombie
    with writer_lock(tmp_path) as confirm:
        confirm()


@pytest.mark.usefixtures("short_silence")
@pytest.mark.parametrize("beat", ["7", "given back"])
def test_a_lock_of_an_earlier_version_is_understood(
    beat: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It names a process in JSON, and no socket."""
    (tmp_path / LOCK_FOLDER).mkdir()
    described = json.dumps({"process": os.getpid(), "host": "here", "boot": "b"})
    (tmp_path / LOCK_FOLDER / "3").write_text(f"{described}\n{beat:<20}\n")
    with caplog.at_level("INFO"), writer_lock(tmp_path):
        assert (caplog.text == "") == (beat == "given back")  # or it is watched
        assert [path.name for path in (tmp_path / LOCK_FOLDER).iterdir()] == ["4"]
