"""The initial weights of a training run: whether they are there, and their hash."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.io.atomic import file_sha256

_MLPERF_FILE: Final = "mlperf_hpc_openfold_resumable_checkpoint.pt"
"""The file that the MLPerf benchmark starts from, which its users must bring themselves."""

_OF_A_CHECKPOINT: Final = "averaged.pt"
"""Which file of a checkpoint folder a training run starts from."""


def check_initial_weights(config: Config) -> None:
    """Raise an InputError if the weights that a training run starts from are not there."""
    path = config.training.initial_weights
    if path is not None and not path.exists():
        where = ". docs/fine-tune.md says where it comes from" if path.name == _MLPERF_FILE else ""
        raise InputError(
            f"training.initial_weights: {path}: no such file or checkpoint folder. Correct the "
            f"path, bring the file there, or set null to start from random weights{where}"
        )


def initial_weights_file(config: Config) -> Path | None:
    """Return the file that ``training.initial_weights`` comes to; None for random weights."""
    path = config.training.initial_weights
    return path / _OF_A_CHECKPOINT if path is not None and path.is_dir() else path


def initial_weights_sha256(config: Config) -> str | None:
    """SHA-256 of the file that ``training.initial_weights`` comes to.

    A run key holds the path, not the contents: the file may not exist yet when the key is needed.

    Returns
    -------
    str or None
        None for random weights, and if the file cannot be read. Its reader reports why.
    """
    file = initial_weights_file(config)
    try:
        return None if file is None else _sha256(file, file.stat().st_mtime_ns)
    except OSError:
        return None


@cache  # an evaluation beside training asks every few seconds
def _sha256(file: Path, time_ns: int) -> str:
    return file_sha256(file)
