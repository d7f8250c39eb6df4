"""What is wrong with a machine is found, and named in the verdict."""

from __future__ import annotations

import getpass
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.conftest import ROOT, run

from scalefold.doctor import Finding, folders, gpus, verdict

SHARDS = ROOT / "tests/data/a3f069b/run/shards"


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "caches"))


def wrong(findings: Any) -> list[str]:
    return [finding.subject for finding in findings if finding.wrong]


def test_a_sound_folder_is_left_as_it_was(tmp_path: Path) -> None:
    results = tmp_path / "not/yet/there"
    assert wrong(folders.of_results(results)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_takes_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (found,) = folders.of_results(tmp_path / "file/results")
    assert found.wrong
    assert str(tmp_path / "file") in found.said


def test_a_clock_apart_from_that_of_the_file_system_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch = Path.touch

    def an_hour_ago(path: Path) -> None:
        touch(path)
        os.utime(path, (0, path.stat().st_mtime - 3600))

    monkeypatch.setattr(Path, "touch", an_hour_ago)
    found = list(folders.of_results(tmp_path))
    assert wrong(found) == ["clock"]
    assert verdict(found) == f"verdict: 1 of {len(found)} things to fix: clock"


def test_damaged_shards_are_found(tmp_path: Path) -> None:
    assert not folders.of_shards(SHARDS).wrong
    damaged = shutil.copytree(SHARDS, tmp_path / "shards")
    for file in damaged.glob("msa-*.arrow"):
        content = bytearray(file.read_bytes())
        content[len(content) // 3] ^= 255
        file.write_bytes(content)
    assert folders.of_shards(damaged).wrong
    assert folders.of_shards(tmp_path).wrong


def test_caches_that_cannot_be_written_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wrong(folders.of_caches()) == []
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "file"))
    assert wrong(folders.of_caches()) == ["triton"]


def test_a_user_without_a_name_has_a_cache_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless() -> str:
        raise OSError("No username set in the environment")

    monkeypatch.setattr(getpass, "getuser", nameless)
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    *_, inductor = folders.of_caches()
    assert f"torchinductor_uid_{os.getuid()}" in inductor.said


def test_processes_sum_up_a_buffer() -> None:
    assert gpus.sum_bandwidth(2, "cpu", 2**20) > 0


def test_gpus_that_cannot_exchange_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> float:
        raise RuntimeError("NCCL error\nunhandled system error")

    monkeypatch.setattr(gpus, "sum_bandwidth", fails)
    found = gpus._links(2)
    assert found == Finding("links", "the 2 GPUs cannot exchange: unhandled system error", True)


def test_the_command_ends_with_a_verdict(tmp_path: Path) -> None:
    asked = ["doctor", "--device", "cpu", "--results", str(tmp_path)]
    sound = run(*asked, "--shards", str(SHARDS))
    assert (sound.exit_code, sound.stdout.splitlines()[-1]) == (0, "verdict: all is well")
    unsound = run(*asked, "--shards", str(tmp_path))
    assert unsound.exit_code == 2
    assert unsound.stdout.splitlines()[-1].endswith("to fix: shards")
