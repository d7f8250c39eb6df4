"""Making way for a run with other settings or data in the folder of an earlier one.

A workflow that finds its training outdated runs it again in the same folder. What it replaces took
long to make: it is moved, never deleted.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.train import checkpoint as checkpoints
from scalefold.train.lock import LOCK_FILE, writer_lock
from scalefold.train.loop import WEIGHTS_FOLDER
from scalefold.train.metrics import METRICS_FILE, TENSORBOARD_FOLDER
from scalefold.train.provenance import data_hash
from scalefold.train.resume import check_resumable

logger = logging.getLogger(__name__)

REPLACED_FOLDER: Final = "replaced"
EVALUATION_FOLDER: Final = "evaluation"


def set_aside_other_run(config: Config, shards: Path, out: Path) -> Path | None:
    """Move away the training that ``out`` holds, unless ``config`` and ``shards`` continue it.

    Another run is: other settings or data (see `check_resumable`), more steps than are wanted now,
    or a checkpoint missing that is to be evaluated.

    Parameters
    ----------
    config : Config
    shards : Path
    out : Path
        The run's folder, as for `train`.

    Returns
    -------
    Path or None
        Where the earlier run's weights, metrics and evaluations are now: ``out/replaced/<number>``.

    Raises
    ------
    InputError
        If another training is at work in ``out``.
    """
    folder = out / WEIGHTS_FOLDER
    with writer_lock(folder):
        reason = _difference(config, shards, folder)
        if reason is None:
            return None
        replaced = out / REPLACED_FOLDER
        number = 1 + max((int(path.name) for path in replaced.glob("[0-9]*")), default=0)
        target = replaced / str(number)
        (target / WEIGHTS_FOLDER).mkdir(parents=True)
        for path in sorted(folder.iterdir()):
            if path.name != LOCK_FILE:
                path.rename(target / WEIGHTS_FOLDER / path.name)
        for name in (METRICS_FILE, TENSORBOARD_FOLDER, EVALUATION_FOLDER):
            if (out / name).exists():
                (out / name).rename(target / name)
        logger.warning("training starts anew, the earlier one is kept in %s: %s", target, reason)
        return target


def _difference(config: Config, shards: Path, folder: Path) -> str | None:
    """Say why a folder's checkpoints are not a part of this run; None if they are."""
    found = {checkpoints.read_metadata(path).step for path in checkpoints.checkpoints(folder)}
    if not found:
        return None
    last = max(found)
    if last > config.training.steps:
        return f"it made {last} steps, training.steps is {config.training.steps}"
    missing = [s for s in config.training.published_steps() if s <= last and s not in found]
    if missing and not config.training.keep_checkpoints:
        return f"it published no checkpoint at step {missing[0]}"
    try:
        path = checkpoints.checkpoint_path(folder, last)
        metadata = checkpoints.read_metadata(path)
        check_resumable(path, metadata, config, data_hash(shards))
    except InputError as error:
        return str(error)
    return None
