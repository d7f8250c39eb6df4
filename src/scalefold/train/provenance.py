"""Which code and which data a run is made with."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import scalefold
from scalefold.shards.schema import MANIFEST_FILE


def source_commit() -> str | None:
    """Commit of the source checkout, with ``+`` if it has changes; None if installed otherwise."""
    folder = Path(scalefold.__file__).resolve().parent
    if not any((parent / ".git").exists() for parent in folder.parents):
        return None
    commit = _git(folder, "rev-parse", "HEAD")
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return commit and commit + ("+" if changes else "")


def data_hash(shards: Path) -> str:
    """SHA-256 of the shards' manifest, which holds the hash of each file: identifies the data."""
    return hashlib.sha256((shards / MANIFEST_FILE).read_bytes()).hexdigest()


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:  # git is not needed to train
        return None
    return done.stdout.strip() if done.returncode == 0 else None
