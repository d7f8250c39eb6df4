"""The commit is that of the code at hand, wherever the code came from, or it is not told."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from scalefold.checkpoint.provenance import COMMIT_FILE, recorded_commit, source_commit

ROOT = Path(__file__).parents[3]
PLACEHOLDER = "$Format:%H$\n"


def git(folder: Path, *arguments: str) -> bytes:
    """Output of git without its user's settings: they may want commits signed."""
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
    unset = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.check_output(command, env=os.environ | unset)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with a package in its source folder, as ours."""
    folder = tmp_path / "checkout"
    package = folder / "src/scalefold"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / COMMIT_FILE).write_text(PLACEHOLDER)
    (folder / ".gitattributes").write_bytes((ROOT / ".gitattributes").read_bytes())
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


def test_checkout_tells_its_commit_and_whether_it_has_changes(checkout: Path) -> None:
    package, head = checkout / "src/scalefold", git(checkout, "rev-parse", "HEAD").decode().strip()
    assert source_commit(package) == head
    (package / "untracked.py").touch()
    assert source_commit(package) == head
    (package / "__init__.py").write_text("changed = True\n")
    assert source_commit(package) == head + "+"


def test_package_in_a_foreign_checkout_does_not_tell_its_commit(checkout: Path) -> None:
    installed = checkout / ".venv/lib/scalefold"
    installed.mkdir(parents=True)
    (installed / "__init__.py").touch()
    (installed / COMMIT_FILE).write_text(PLACEHOLDER)
    assert source_commit(installed) is None
    (installed / COMMIT_FILE).write_text("c0ffee" * 6 + "c0ff+\n")
    assert source_commit(installed) == "c0ffee" * 6 + "c0ff+"


def test_archive_holds_its_commit(checkout: Path, tmp_path: Path) -> None:
    head = git(checkout, "rev-parse", "HEAD").decode().strip()
    with tarfile.open(fileobj=io.BytesIO(git(checkout, "archive", "HEAD"))) as archive:
        archive.extractall(tmp_path / "archive", filter="data")
    assert source_commit(tmp_path / "archive/src/scalefold") == head


def test_this_package_has_the_placeholder_or_is_of_an_archive() -> None:
    file = ROOT / "src/scalefold" / COMMIT_FILE
    assert file.read_text() == PLACEHOLDER or recorded_commit(file)


def test_without_checkout_and_record_there_is_none(tmp_path: Path) -> None:
    assert source_commit(tmp_path) is None
