from __future__ import annotations

import errno
import hashlib
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from scalefold.errors import InputError
from scalefold.io.atomic import (
    HashingFile,
    atomic_file,
    check_file,
    check_writable,
    write_bytes,
)
from scalefold.shards.codec import decode_chain
from scalefold.shards.shard_file import ShardFile
from scalefold.shards.writer import write_shard


def test_hash_is_that_of_the_file(tmp_path):
    with atomic_file(tmp_path / "f") as file:
        file.write(b"ab")
        file.write(memoryview(b"cd"))
    assert (tmp_path / "f").read_bytes() == b"abcd"
    assert file.sha256 == hashlib.sha256(b"abcd").hexdigest()
    assert file.num_bytes == 4


@pytest.mark.parametrize("name", [".", "folder"])
def test_a_folder_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="is a folder"):
        write_bytes(Path(name), b"")


def test_whether_a_folder_can_be_made_is_told_without_making_it(tmp_path: Path) -> None:
    file, nowhere = tmp_path / "file", tmp_path / "link"
    file.touch()
    nowhere.symlink_to(tmp_path / "gone")
    before = sorted(tmp_path.rglob("*"))
    check_writable(tmp_path, "results")
    check_writable(tmp_path / "deep/run", "results")
    for there, folder in ((file, file), (file, file / "deep/run"), (nowhere, nowhere / "run")):
        with pytest.raises(InputError, match=rf"results: {folder} .*{there}"):
            check_writable(folder, "results")
    assert sorted(tmp_path.rglob("*")) == before


def test_what_cannot_be_read_meanwhile_is_no_error_of_what_is_written(tmp_path: Path) -> None:
    source = tmp_path / "source"
    with (
        pytest.raises(FileNotFoundError, match=str(source)),
        atomic_file(tmp_path / "f") as file,
    ):
        file.write(source.read_bytes())
    assert list(tmp_path.iterdir()) == []


def test_whether_a_file_can_be_written_is_told_without_writing_it(tmp_path: Path) -> None:
    check_file(tmp_path / "new")
    earlier = tmp_path / "earlier"
    earlier.write_text("kept")
    check_file(earlier)
    assert [(path, path.read_text()) for path in tmp_path.iterdir()] == [(earlier, "kept")]
    for path, problem in (
        (tmp_path, "is a folder"),
        (tmp_path / "no/new", ".*No such file or directory"),
        (earlier / "new", ".*Not a directory"),
    ):
        with pytest.raises(InputError, match=f"^{path}: {problem}"):
            check_file(path)


def test_a_folder_that_takes_no_file() -> None:
    """Root's permissions reach everywhere; this file system takes files of nobody."""
    for folder in ("/proc", "/proc/deep/run"):
        with pytest.raises(InputError, match=rf"results: {folder} .*/proc"):
            check_writable(Path(folder), "results")


def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match=rf"{tmp_path} .*Permission denied"):
        check_writable(tmp_path / "run", "results")


def test_error_leaves_the_earlier_file(tmp_path):
    write_bytes(tmp_path / "f", b"old")

    def fail() -> None:
        with atomic_file(tmp_path / "f") as file:
            file.write(b"new")
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [path.name for path in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


def test_missing_folder_is_explained(tmp_path):
    with pytest.raises(InputError, match="Create the folder"):
        write_bytes(tmp_path / "no" / "f", b"x")


def test_a_file_that_cannot_be_opened_leaves_nothing_for_the_interpreter_to_complain_of(tmp_path):
    """Which Python 3.13 does on standard error, and earlier ones in development mode."""
    code = (
        "from pathlib import Path; from scalefold.io.atomic import write_bytes\n"
        "try: write_bytes(Path('no/f'), b'')\n"
        "except ValueError: pass"
    )
    command = [sys.executable, "-X", "dev", "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stderr == ""


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_leaves_nothing_half_written(tmp_path, make_chain, monkeypatch, code):
    path = tmp_path / "chain-00000.arrow"
    with write_shard(path, "chain") as shard:
        shard.add(make_chain(1))
    before = path.read_bytes()
    real = HashingFile.write

    def write(self: HashingFile, content: bytes) -> int:
        if self.num_bytes > 3000:
            raise OSError(code, os.strerror(code))
        return real(self, content)

    monkeypatch.setattr(HashingFile, "write", write)

    def fill() -> None:
        with write_shard(path, "chain") as shard:
            for seed in range(100):
                shard.add(make_chain(seed))

    with pytest.raises(InputError, match="make room") as caught:
        fill()
    assert str(path) in str(caught.value)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]
    assert path.read_bytes() == before


def test_limit_of_the_operating_system_leaves_nothing_half_written(tmp_path):
    """A real refusal by the kernel: the file may not grow over 64 KiB."""
    script = """
import sys
from pathlib import Path
from scalefold.io.atomic import atomic_file
with atomic_file(Path(sys.argv[1])) as file:
    for _ in range(100):
        file.write(bytes(4096))
"""
    write_bytes(tmp_path / "f", b"old")
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (65536, 65536))  # noqa: E731
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "f")],
        preexec_fn=limit,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert "InputError" in done.stderr
    assert "make room" in done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


def test_kill_in_the_middle_leaves_the_earlier_shard(tmp_path, make_chain):
    """A writer is killed with SIGKILL after some rows; the shard of before is intact."""
    path = tmp_path / "chain-00000.arrow"
    with write_shard(path, "chain") as shard:
        shard.add(make_chain(5))
    before = path.read_bytes()
    script = """
import sys
from pathlib import Path
from scalefold.shards.shard_file import ShardFile
from scalefold.shards.writer import write_shard
path = Path(sys.argv[1])
batch = ShardFile(path, "chain").row(0)
for target in (path, path.with_name("chain-00001.arrow")):
    with write_shard(target, "chain") as shard:
        for _ in range(200):
            shard.add_batch(batch)
        if target != path or len(sys.argv) == 2:
            print("writing", flush=True)
            sys.stdin.read()
"""
    for arguments in ([], ["second file"]):
        path.write_bytes(before)
        process = subprocess.Popen(
            [sys.executable, "-c", script, str(path), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
        assert process.stdin is not None
        process.stdin.close()
        if arguments:
            # The first file was complete, the second is not there.
            assert ShardFile(path, "chain").num_rows == 200
            assert not (tmp_path / "chain-00001.arrow").exists()
        else:
            assert path.read_bytes() == before
            assert decode_chain(ShardFile(path, "chain").row(0)).chain_key == "1abc_A"
        leftovers = [p for p in tmp_path.iterdir() if p.suffix != ".arrow"]
        assert len(leftovers) == 1
        assert ".tmp." in leftovers[0].name
        leftovers[0].unlink()


def test_same_rows_give_the_same_bytes(tmp_path, make_chain):
    facts = []
    for name in ("a", "b"):
        folder: Path = tmp_path / name
        folder.mkdir()
        with write_shard(folder / "chain-00000.arrow", "chain", "zstd") as shard:
            for seed in range(4):
                shard.add(make_chain(seed))
        content = (folder / "chain-00000.arrow").read_bytes()
        assert shard.facts.sha256 == hashlib.sha256(content).hexdigest()
        assert (shard.facts.bytes, shard.facts.rows) == (len(content), 4)
        facts.append(shard.facts)
    assert facts[0] == facts[1]


def test_a_bad_record_does_not_spoil_the_shard(tmp_path, make_chain):
    path = tmp_path / "chain-00000.arrow"
    with write_shard(path, "chain") as shard:
        assert shard.add(make_chain(0)) == 0
        bad = make_chain(1)
        bad.positions[:] = float("inf")
        with pytest.raises(InputError, match="non-finite"):
            shard.add(bad)
        assert shard.add(make_chain(2, key="2abc_A")) == 1
    file = ShardFile(path, "chain")
    assert [decode_chain(file.row(i)).chain_key for i in range(2)] == ["1abc_A", "2abc_A"]
