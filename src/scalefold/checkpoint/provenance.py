"""Which code and which files a run is made with."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

import scalefold

_PACKAGE: Final = Path(scalefold.__file__).resolve().parent
COMMIT_FILE: Final = "commit.txt"
"""In the package: ``git archive``, or the build of a wheel, writes the commit into it."""


def source_commit(package: Path = _PACKAGE) -> str | None:
    """Commit of the code, with ``+`` if it was changed since; None where it is not known.

    It is the commit written into the package when it was built, else that of the package's git
    checkout.
    """
    recorded = recorded_commit(package / COMMIT_FILE)
    # A package that is installed inside somebody's checkout is not of that checkout.
    if recorded or _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return recorded
    commit = _git(package, "rev-parse", "HEAD")
    changes = _git(package, "status", "--porcelain", "--untracked-files=no")
    return commit and commit + ("+" if changes else "")


def recorded_commit(file: Path) -> str | None:
    """The commit in the file; None if the file still holds git's placeholder."""
    text = file.read_text("utf-8").strip() if file.is_file() else ""
    return text if re.fullmatch(r"[0-9a-f]{40}\+?", text) else None


def device_name(device: torch.device) -> str:
    """The GPU's name, or CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def made_with(device: torch.device) -> dict[str, str | None]:
    """Commit, torch's version and device: what a number of this process was made with."""
    return {
        "commit": source_commit(),
        "torch": torch.__version__,
        "device": device_name(device),
    }


@dataclass(frozen=True)
class InputHashes:
    """The files that a training run depends on, by what is in them.

    Attributes
    ----------
    data_manifest_sha256 : str
        See `scalefold.shards.manifest.data_hash`.
    initial_weights_sha256 : str or None
        See `scalefold.config.initial_weights_sha256`.
    """

    data_manifest_sha256: str
    initial_weights_sha256: str | None = None


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:  # git is not needed to train
        return None
    return done.stdout.strip() if done.returncode == 0 else None
