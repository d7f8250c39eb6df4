"""The weights that a training starts from: are they there, and which are they?"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Final

from scalefold.config.schema import Config
from scalefold.errors import InputError

_OF_A_CHECKPOINT: Final = "averaged.pt"
"""Which file of a checkpoint folder a training starts from."""


def check_initial_weights(config: Config) -> None:
    """Raise an InputError if the weights that a training starts from are not there."""
    path = config.training.initial_weights
    if path is not None and not path.exists():
        raise InputError(
            f"training.initial_weights: {path}: no such file or checkpoint folder. Bring it there, "
            "also for a training that is to go on (docs/reproduction.md says where the MLPerf "
            "benchmark's is from; of several stages, each makes the weights of the next). Or "
            "correct the path, or set null to start from random weights"
        )


def initial_weights_file(config: Config) -> Path | None:
    """Return the file that ``training.initial_weights`` comes to; None for random weights."""
    path = config.training.initial_weights
    return path / _OF_A_CHECKPOINT if path is not None and path.is_dir() else path


def initial_weights_sha256(config: Config) -> str | None:
    """SHA-256 of the file that ``training.initial_weights`` comes to.

    The path is in a training's key, what is in the file is not: it may not be there yet when the
    key is needed.

    Returns
    -------
    str or None
        None for random weights, and where no file can be read: who reads it says why.
    """
    file = initial_weights_file(config)
    try:
        return None if file is None else _sha256(file, file.stat().st_mtime_ns)
    except OSError:
        return None


@cache  # the workflow asks every few seconds while a training runs
def _sha256(file: Path, time_ns: int) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
