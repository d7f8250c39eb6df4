"""Moving an earlier training run away when one from other files starts in its folder.

A workflow names the folder of a training run by what its configuration determines, so another
configuration has another folder. The contents of files are not in the name: shards that were packed
again, or other initial weights under the same path, start the training over in its folder. The
earlier training run was expensive, so it is moved, never deleted.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Final

from scalefold.checkpoint.lock import LOCK_FOLDER, TRAINING_LOG
from scalefold.checkpoint.provenance import InputHashes
from scalefold.checkpoint.published import passed_steps
from scalefold.checkpoint.read import checkpoint_path, checkpoints, read_metadata
from scalefold.checkpoint.resume import run_differences
from scalefold.config.schema import Config
from scalefold.errors import listed

logger = logging.getLogger(__name__)

REPLACED_FOLDER: Final = "replaced"


def set_aside_other_run(config: Config, inputs: InputHashes, out: Path) -> Path | None:
    """Move the training in ``out`` away, unless configuration and data continue it.

    It is another one if it was made with other files or settings (see `run_differences`), or went
    beyond ``training.steps`` without a checkpoint of that step. Checkpoints of earlier steps may be
    missing: a training run is worth more than a point of its curve.

    Parameters
    ----------
    out : Path
        The training's folder, whose lock the caller holds.

    Returns
    -------
    Path or None
        Where everything of the earlier training run is now: ``out/replaced/<number>``. Of its log a
        copy: the workflow has ``training.log`` open and goes on writing there.
    """
    reason = _difference(config, inputs, out)
    if reason is None:
        return None
    replaced = out / REPLACED_FOLDER
    earlier = [int(path.name) for path in replaced.glob("[0-9]*") if path.name.isdecimal()]
    number = 1 + max(earlier, default=0)
    target = replaced / str(number)
    target.mkdir(parents=True)
    for path in sorted(out.iterdir()):
        if path.name == TRAINING_LOG:
            shutil.copy2(path, target)
        elif path.name not in (LOCK_FOLDER, REPLACED_FOLDER):
            path.rename(target / path.name)
    logger.warning("training starts over, and the earlier one is kept in %s: %s", target, reason)
    return target


def _difference(config: Config, inputs: InputHashes, out: Path) -> str | None:
    """Say why a folder's checkpoints are not a part of this run; None if they are."""
    found = [read_metadata(path).step for path in checkpoints(out)]
    if not found:
        return None
    metadata = read_metadata(checkpoint_path(out, found[-1]))
    differences = run_differences(metadata, config, inputs)
    if differences:
        return f"it had other data, initial weights or settings:{listed(differences)}"
    if config.training.steps in passed_steps(found, config.training):
        return f"it made {found[-1]} steps and has no checkpoint of step {config.training.steps}"
    return None
