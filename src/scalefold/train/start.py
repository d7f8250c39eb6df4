"""Training, from its arguments to its result."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console

from scalefold.checkpoint.early_stopping import EndWatch
from scalefold.checkpoint.lock import writer_lock
from scalefold.checkpoint.provenance import InputHashes, made_with
from scalefold.checkpoint.read import read_metadata
from scalefold.checkpoint.replacement import set_aside_other_run
from scalefold.checkpoint.resume import former_data
from scalefold.checkpoint.write import remove_leftovers
from scalefold.config.identity import config_hash
from scalefold.config.initial_weights import initial_weights_sha256
from scalefold.config.schema import Config
from scalefold.engine.memory import exhaustion_explained
from scalefold.loader.loader import TrainingLoader, local_batch_size
from scalefold.loader.sampler import TrainingSampler
from scalefold.loader.shared_batches import SharedLoader
from scalefold.parallel import SINGLE, Mesh, Ranks
from scalefold.parallel.agreement import check_same, on_all, on_first
from scalefold.shards.manifest import data_hash
from scalefold.shards.packed_settings import warn_of_other_settings
from scalefold.shards.reader import ShardReader
from scalefold.train.assemble import TrainingParts, assemble
from scalefold.train.loop import TrainingLoop, TrainingResult
from scalefold.train.sessions import session
from scalefold.train.skipped_steps import SkippedSteps
from scalefold.train.starting_point import find_checkpoint, restore
from scalefold.train.training_files import TrainingFiles

logger = logging.getLogger(__name__)

FULL_SIZE: Final = 50_000_000
"""More parameters than this are no small model for trials; AlphaFold2's has 93 million."""


def train(
    config: Config,
    shards: Path,
    out: Path,
    *,
    resume: bool,
    device: torch.device,
    stop: threading.Event,
    set_aside: bool = False,
    mesh: Mesh = SINGLE,
    console: Console | None = None,
) -> TrainingResult:
    """Train from random weights, from ``training.initial_weights``, or from the last checkpoint.

    With several processes, each of them calls this with the same arguments but for ``device``.

    Parameters
    ----------
    out : Path
        The training's folder: gets ``step-<number>/`` (checkpoints), ``metrics.jsonl``,
        ``tensorboard/``. One training run a folder; `scalefold.config.run_key` is a name for it.
    resume : bool
        Continue from the last complete checkpoint of ``out``, on a CPU bit-exactly with the same
        numbers of processes and threads; from the start if there is none.
    device : torch.device
        A GPU must be torch's current one.
    stop : Event
        When set on any rank, all ranks finish the current step, a checkpoint is written, and the
        call returns.
    set_aside : bool
        Move a training run of other data, initial weights or settings out of the way, see
        `set_aside_other_run`.

    Raises
    ------
    InputError
        Bad shards, another writer at work, a checkpoint of another run, a full disk, too small a
        GPU.
    DivergedError
        If more than ``training.max_non_finite_steps`` steps in a row were not finite.
    RankLostError
        If another process has ended or does not answer.
    """
    world, training = mesh.world, config.training
    with contextlib.ExitStack() as stack:
        # 1. The data, the same for all ranks, and the lock of the training's folder.
        reader, sampler, inputs = on_all(world, lambda: _open_data(config, shards, mesh))
        _check_same_start(config, inputs, world)
        mesh.set_timeout(training.start_timeout_seconds)
        confirm_lock = _lock(out, mesh, stack)

        # 2. The model, in its initial state. It comes first, so that damaged initial weights do not
        # set another training run aside.
        parts = on_all(world, lambda: assemble(config, device, mesh))

        # 3. The state of the last checkpoint, if there is one.
        def find_start() -> Path | None:
            if set_aside:
                set_aside_other_run(config, inputs, out)
            return find_checkpoint(config, out, inputs, resume=resume)

        checkpoint = on_first(world, find_start)
        skips = SkippedSteps(training.max_non_finite_steps)
        position = restore(checkpoint, parts.state, skips, world)
        step = position.step

        # 4. What the first rank writes, and what it reads of evaluations.
        files = None
        if mesh.first:
            former = [] if checkpoint is None else former_data(read_metadata(checkpoint), inputs)
            console = console or Console(stderr=True)
            files = TrainingFiles(config, parts, out, step, inputs, former, confirm_lock, console)
            stack.enter_context(files)
        watch = EndWatch(out, config.evaluation, inputs.data_manifest_sha256)

        # 5. Samples: one loader for the ranks that share them.
        own_loader = None
        if mesh.dap.rank == 0:
            rank, size = mesh.data.rank, mesh.data.size
            own_loader = TrainingLoader(reader, config, device, position, rank, size, stop)
            stack.enter_context(own_loader)
        loader = SharedLoader(own_loader, mesh.dap, device)

        # 6. The steps.
        loop = TrainingLoop(config, parts, mesh, step, skips, loader, files, watch, stop, out)
        if mesh.first and step < training.steps:
            _log_what_is_trained(sampler, parts, device)
            facts = _session_facts(sampler, mesh, device)
            stack.enter_context(session(out, lambda: loop.step, **facts))
        stack.enter_context(exhaustion_explained(parts.checkpointing))
        return loop.run()


def _open_data(
    config: Config, shards: Path, mesh: Mesh
) -> tuple[ShardReader, TrainingSampler, InputHashes]:
    """Open the data; fails, before anything is written, if ranks cannot share or draw samples."""
    local_batch_size(config.training, mesh.data.size)
    reader = ShardReader(shards)
    sampler = TrainingSampler(reader.index, config.sampling, config.seed)
    if mesh.first:
        warn_of_other_settings(shards, config)
    return reader, sampler, InputHashes(data_hash(shards), initial_weights_sha256(config))


def _check_same_start(config: Config, inputs: InputHashes, world: Ranks) -> None:
    digits = [config_hash(config), *(sha256[:12] for sha256 in astuple(inputs) if sha256)]
    check_same(world, "configuration, data and initial weights", "".join(digits))


def _lock(out: Path, mesh: Mesh, stack: contextlib.ExitStack) -> Callable[[], None]:
    """Lock the training's folder on the first rank; returns what makes sure of the lock there."""
    confirms: list[Callable[[], None]] = []  # a function cannot be sent to the other ranks

    def claim() -> None:
        confirms.append(stack.enter_context(writer_lock(out)))
        remove_leftovers(out)

    on_first(mesh.world, claim)
    return confirms[0] if mesh.first else lambda: None


def _log_what_is_trained(
    sampler: TrainingSampler, parts: TrainingParts, device: torch.device
) -> None:
    logger.info("%s", sampler)
    flat = parts.parameters
    if device.type == "cpu" and flat.num_parameters > FULL_SIZE:
        logger.warning(
            "training a model of %s parameters on a CPU: a step takes minutes, and may need more "
            "memory than there is. Use a GPU, or preset tiny for a trial",
            f"{flat.num_parameters:,}",
        )
    if flat.num_trained < flat.num_parameters:
        logger.info(
            "training %s of %s parameters, as training.trainable says",
            f"{flat.num_trained:,}", f"{flat.num_parameters:,}",
        )  # fmt: skip


def _session_facts(sampler: TrainingSampler, mesh: Mesh, device: torch.device) -> dict[str, Any]:
    return {
        "processes": mesh.world.size,
        "processes_a_sample": mesh.dap.size,
        "train_chains": sampler.chains,
        "train_chains_drawn": len(sampler.probabilities),
        **made_with(device),
    }
