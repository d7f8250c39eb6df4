"""Where a training run starts: at its last checkpoint, or at step 0."""

from __future__ import annotations

import logging
from pathlib import Path

from scalefold.checkpoint.provenance import InputHashes
from scalefold.checkpoint.read import latest, load_training, load_weights, read_metadata
from scalefold.checkpoint.resume import check_resumable
from scalefold.checkpoint.state import TrainingState
from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.loader.order import Position
from scalefold.parallel import Ranks
from scalefold.parallel.agreement import on_first
from scalefold.parallel.ranks import broadcast_tensors
from scalefold.train.skipped_steps import SkippedSteps

logger = logging.getLogger(__name__)


def find_checkpoint(config: Config, out: Path, inputs: InputHashes, *, resume: bool) -> Path | None:
    """Return the checkpoint that a training run goes on from; None for a start at step 0.

    Raises
    ------
    InputError
        If there is one and ``resume`` is False, or it is of another run.
    """
    last = latest(out)
    if last is None:
        if resume:
            logger.info("%s: no complete checkpoint to continue from, starting at step 0", out)
        return None
    if not resume:
        raise InputError(
            f"{out}: holds checkpoints of a run already, the last is {last.name}. Continue it "
            "with --resume, or choose another folder (or delete this one)"
        )
    metadata = read_metadata(last)
    check_resumable(last, metadata, config, inputs)
    if metadata.data_manifest_sha256 != inputs.data_manifest_sha256:
        logger.warning(
            "%s: continuing with different data, since training.accept_new_data is set", last
        )
    if metadata.step < config.training.steps:
        logger.info("continuing from %s", last)
    else:
        steps = config.training.steps
        logger.info("%s: complete, nothing is left to do: training.steps is %d", last, steps)
    return last


def restore(
    checkpoint: Path | None, state: TrainingState, skips: SkippedSteps, world: Ranks
) -> Position:
    """Bring all ranks into the state of a checkpoint, which the first reads; None for step 0.

    Returns
    -------
    Position
        Where all ranks' loaders start; it has the number of steps made.
    """
    state.unshard()
    position, skips.skipped, skips.in_a_row = on_first(
        world, lambda: _read(checkpoint, state) if checkpoint else (Position(0), 0, 0)
    )
    broadcast_tensors(world, list(state.tensors().values()))
    state.shard()
    state.parameters.update_working_copy()
    return position


def _read(checkpoint: Path, state: TrainingState) -> tuple[Position, int, int]:
    training = load_training(checkpoint)
    state.restore(
        load_weights(checkpoint, "weights"),
        load_weights(checkpoint, "averaged"),
        training["optimiser"],
        str(checkpoint),
    )
    # checkpoints of earlier versions were in order, and have no more than the step
    position = Position.of_state(training.get("data", Position(training["step"]).state()))
    return position, training["skipped"], training["skipped_in_a_row"]
