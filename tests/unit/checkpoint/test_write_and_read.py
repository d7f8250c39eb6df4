"""Checkpoints: whole or not at all, and no silent damage."""

from __future__ import annotations

import errno
import json
import logging
import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from scalefold.checkpoint import write as checkpoint
from scalefold.checkpoint.read import (
    checkpoint_path,
    checkpoints,
    latest,
    load_training,
    load_weights,
    read_metadata,
    ready_mark,
)
from scalefold.checkpoint.write import prune, remove_leftovers, save
from scalefold.errors import ChecksumError, InputError

DESCRIPTION: dict[str, Any] = {
    "config": {"seed": 0},
    "config_hash": "abc",
    "data_manifest_sha256": "def",
    "scalefold_version": "0",
    "commit": None,
}


def _save(folder: Path, step: int, value: float = 1.0, size: int = 10) -> Path:
    return save(
        folder,
        step=step,
        weights={"a": torch.full((size,), value), "b": torch.randn(3, 2)},
        averaged={"a": torch.full((size,), value / 2)},
        training={"step": step, "optimiser": {"first_moment": {"a": torch.zeros(3)}}},
        description=DESCRIPTION,
    )


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    path = _save(tmp_path, 40, value=0.1)
    assert path == tmp_path / "step-00000040"
    assert sorted(p.name for p in path.iterdir()) == [
        "averaged.pt", "checkpoint.json", "training.pt", "weights.pt",
    ]  # fmt: skip
    assert (tmp_path / "step-00000040.ready").exists()
    assert torch.equal(load_weights(path)["a"], torch.full((10,), 0.1) / 2)
    assert torch.equal(load_weights(path, "weights")["a"], torch.full((10,), 0.1))
    assert load_training(path)["step"] == 40
    metadata = read_metadata(path)
    assert metadata.step == 40
    assert metadata.config == {"seed": 0}
    for name, facts in metadata.files.items():
        assert (path / name).stat().st_size == facts.bytes


def test_latest_and_pruning(tmp_path: Path) -> None:
    assert latest(tmp_path / "nothing here") is None
    assert latest(tmp_path) is None
    for step in (0, 100, 20, 3):
        _save(tmp_path, step)
    assert latest(tmp_path) == checkpoint_path(tmp_path, 100)
    prune(tmp_path, 0)
    assert len(checkpoints(tmp_path)) == 4
    prune(tmp_path, 2)
    assert [p.name for p in checkpoints(tmp_path)] == ["step-00000020", "step-00000100"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "step-00000020", "step-00000020.ready", "step-00000100", "step-00000100.ready",
    ]  # fmt: skip
    prune(tmp_path, 5)
    assert len(checkpoints(tmp_path)) == 2


def test_pruning_keeps_scheduled_ones_and_what_a_stopped_training_goes_on_from(
    tmp_path: Path,
) -> None:
    def steps(keep: int) -> list[int]:
        prune(tmp_path, keep, lambda step: step % 50 == 0)
        return [int(path.name.removeprefix("step-")) for path in checkpoints(tmp_path)]

    for step in (0, 50, 73, 99):  # stopped twice
        _save(tmp_path, step)
    assert steps(2) == [0, 50, 99]
    _save(tmp_path, 100)
    assert steps(2) == [50, 100]


def test_a_checkpoint_that_somebody_reads_is_pruned_later_and_ends_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on NFS, where a folder cannot go while a file in it is open."""

    def refusing(folder: Path) -> None:
        raise OSError(errno.ENOTEMPTY, "Directory not empty", str(folder))

    for step in (1, 2):
        _save(tmp_path, step)
    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING):
        patch.setattr(checkpoint.shutil, "rmtree", refusing)
        prune(tmp_path, 1)
        remove_leftovers(tmp_path)
    assert caplog.text.count("not deleted (Directory not empty); the next start tries again") == 2
    assert checkpoints(tmp_path) == [checkpoint_path(tmp_path, 2)]
    remove_leftovers(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000002", "step-00000002.ready"]


@pytest.mark.parametrize("stage", ["first file", "third file", "description", "rename", "mark"])
def test_an_interrupted_write_is_never_taken_for_a_checkpoint(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Stop at every stage, as a kill would: without any clean-up."""
    whole = _save(tmp_path, 1)

    class Killed(BaseException):
        pass

    calls = {"write": 0}
    write, write_bytes = checkpoint._write, checkpoint.write_bytes

    def stopping_write(path: Path, content: object) -> Any:
        calls["write"] += 1
        if (stage, calls["write"]) in (("first file", 1), ("third file", 3)):
            path.write_bytes(b"PK half")
            raise Killed
        return write(path, content)

    def stopping_bytes(path: Path, content: bytes) -> str:
        if stage == "description" and path.name == "checkpoint.json":
            raise Killed
        if stage == "mark" and path.suffix == ".ready":
            raise Killed
        return write_bytes(path, content)

    def stopping_rename(self: Path, target: Path) -> Path:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "_write", stopping_write)
        patch.setattr(checkpoint, "write_bytes", stopping_bytes)
        patch.setattr(checkpoint.shutil, "rmtree", lambda *_, **__: None)  # a kill cleans nothing
        if stage == "rename":
            patch.setattr(Path, "rename", stopping_rename)
        with pytest.raises(Killed):
            _save(tmp_path, 2, value=2.0)

    with caplog.at_level(logging.WARNING):
        assert latest(tmp_path) == whole
    assert "ignored" in caplog.text
    assert torch.equal(load_weights(whole)["a"], torch.full((10,), 0.5))

    remove_leftovers(tmp_path)  # what the next run does first
    again = _save(tmp_path, 2, value=3.0)
    assert latest(tmp_path) == again
    assert load_weights(again)["a"][0] == 1.5
    assert not list(tmp_path.glob("*.tmp.*"))


def test_a_full_disk_leaves_earlier_checkpoints_intact(tmp_path: Path) -> None:
    """A file-size limit is the kind of full disk that a test can have: the same write fails."""
    _save(tmp_path, 1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
        with pytest.raises(InputError, match=r"weights\.pt"):
            _save(tmp_path, 2, size=1_000_000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000001", "step-00000001.ready"]
    assert load_weights(checkpoint_path(tmp_path, 1))["a"][0] == 0.5
    _save(tmp_path, 2, size=1_000_000)


def test_no_space_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint.torch, "save", full)
    with pytest.raises(InputError, match="--resume"):
        _save(tmp_path, 2)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"file/step-.*Not a directory"):
        _save(tmp_path / "file", 2)


@pytest.mark.parametrize("name", ["weights.pt", "averaged.pt", "training.pt", "checkpoint.json"])
def test_one_flipped_bit_is_detected(name: str, tmp_path: Path) -> None:
    path = _save(tmp_path, 5) / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    load = {"weights.pt": lambda p: load_weights(p, "weights"), "training.pt": load_training}
    with pytest.raises(ChecksumError, match=rf"{name}: .*step-00000005.*step-00000005\.ready"):
        load.get(name, load_weights)(path.parent)


@pytest.mark.parametrize("mark", [b"", b"\xff\xfe\n", b"0" * 64, b"\x00" * 65])
def test_a_damaged_mark_is_told(mark: bytes, tmp_path: Path) -> None:
    path = _save(tmp_path, 1)
    ready_mark(path).write_bytes(mark)
    with pytest.raises(ChecksumError, match=r"step-00000001\.ready"):
        read_metadata(path)


@pytest.mark.parametrize(
    "changes",
    [{"files": 3}, {"files": {"weights.pt": None}}, {"files": {"weights.pt": {"bytes": "x"}}},
     {"step": None}, {"config": []}, {"more": 1}],
    ids=str,
)  # fmt: skip
def test_a_description_of_other_kinds_is_told(changes: dict[str, object], tmp_path: Path) -> None:
    path = _save(tmp_path, 1)
    ready_mark(path).unlink()
    file = path / "checkpoint.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    with pytest.raises(InputError, match=r"checkpoint\.json"):
        read_metadata(path)


def test_missing_parts_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="step-00000009"):
        read_metadata(tmp_path / "step-00000009")
    path = _save(tmp_path, 9)
    (path / "averaged.pt").unlink()
    with pytest.raises(InputError, match=r"averaged\.pt"):
        load_weights(path)


def test_a_folder_copied_without_its_mark_can_be_read(tmp_path: Path) -> None:
    path = _save(tmp_path, 9)
    ready_mark(path).unlink()
    assert load_weights(path)["a"][0] == 0.5


def test_other_formats_are_refused(tmp_path: Path) -> None:
    path = _save(tmp_path, 9)
    ready_mark(path).unlink()
    tree = json.loads((path / "checkpoint.json").read_text())
    (path / "checkpoint.json").write_text(json.dumps(tree | {"format": 99}))
    with pytest.raises(InputError, match=r"format 99\b.*\b1\b"):
        read_metadata(path)
    (path / "checkpoint.json").write_text("{")
    with pytest.raises(InputError, match=r"checkpoint\.json"):
        read_metadata(path)
