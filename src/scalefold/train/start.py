"""Training, from its arguments to its result."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path
from typing import Final

import torch
from rich.console import Console

from scalefold.checkpoint.lock import writer_lock
from scalefold.checkpoint.provenance import Inputs, inputs_of, made_with
from scalefold.checkpoint.read import latest, read_metadata
from scalefold.checkpoint.replacement import set_aside_other_run
from scalefold.checkpoint.resume import check_resumable, former_data
from scalefold.checkpoint.target import EndWatch
from scalefold.checkpoint.write import remove_leftovers
from scalefold.config.load import config_hash
from scalefold.config.schema import Config
from scalefold.engine.memory import exhaustion_explained
from scalefold.errors import InputError
from scalefold.loader.loader import TrainingLoader, local_batch_size
from scalefold.loader.sampler import TrainingSampler
from scalefold.loader.shared_batches import shared
from scalefold.parallel import SINGLE, Mesh
from scalefold.parallel.agreement import check_same, on_all, on_first
from scalefold.shards.packed_settings import warn_of_other_settings
from scalefold.shards.reader import ShardReader
from scalefold.train.assemble import assemble
from scalefold.train.run import Run, TrainingResult
from scalefold.train.run_files import RunFiles
from scalefold.train.sessions import session

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
    config : Config
    shards : Path
        What ``scalefold pack`` wrote.
    out : Path
        The training's folder: gets ``step-<number>/`` (checkpoints), ``metrics.jsonl``,
        ``tensorboard/``. One training a folder; `scalefold.config.run_key` is a name for it.
    resume : bool
        Continue from the last complete checkpoint of ``out``, on a CPU bit-exactly with the same
        numbers of processes and threads; from the start if there is none.
    device : torch.device
        A GPU must be torch's current one.
    stop : Event
        When set on any rank, all ranks finish the current step, a checkpoint is written, and the
        call returns.
    set_aside : bool
        Move a training of other data, initial weights or settings out of the way, see
        `set_aside_other_run`.
    mesh : Mesh
        How samples are divided among processes.
    console : Console, optional
        For the progress line; default standard error.

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
    reader, sampler, inputs = on_all(mesh.world, lambda: _open(config, shards, mesh))
    digits = [config_hash(config), *(sha256[:12] for sha256 in astuple(inputs) if sha256)]
    check_same(mesh.world, "configuration, data and initial weights", "".join(digits))
    mesh.set_timeout(config.training.start_timeout_seconds)
    with contextlib.ExitStack() as stack:
        locks: list[Callable[[], None]] = []  # of the first rank

        def claim() -> None:
            locks.append(stack.enter_context(writer_lock(out)))
            remove_leftovers(out)

        def find_start() -> Path | None:
            if set_aside:
                set_aside_other_run(config, inputs, out)
            return _starting_point(config, out, inputs, resume)

        on_first(mesh.world, claim)
        # Before a training is set aside for other initial weights: these may be damaged.
        trainer = on_all(mesh.world, lambda: assemble(config, device, mesh))
        start = on_first(mesh.world, find_start)
        run = Run(config, trainer, mesh, out)
        run.begin(start)
        watch = EndWatch(out, config.evaluation, inputs.data_manifest_sha256)
        files = None
        if mesh.first:
            former = [] if start is None else former_data(read_metadata(start), inputs)
            console = console or Console(stderr=True)
            files = RunFiles(config, trainer, out, run.step, inputs, former, locks[0], console)
            stack.enter_context(files)
            if run.step < config.training.steps:
                logger.info("%s", sampler)
                flat = trainer.parameters
                if device.type == "cpu" and flat.num_parameters > FULL_SIZE:
                    logger.warning(
                        "training a model of %s parameters on a CPU: a step takes minutes, and may "
                        "need more memory than there is. Use a GPU, or preset tiny for a trial",
                        f"{flat.num_parameters:,}",
                    )
                if flat.num_trained < flat.num_parameters:
                    logger.info(
                        "training %s of %s parameters, as training.trainable says",
                        f"{flat.num_trained:,}", f"{flat.num_parameters:,}",
                    )  # fmt: skip
                facts = {
                    "processes": mesh.world.size,
                    "processes_a_sample": mesh.dap.size,
                    "train_chains": sampler.chains,
                    "train_chains_drawn": len(sampler.keys),
                    **made_with(device),
                }
                stack.enter_context(session(out, lambda: run.step, **facts))
        own = None
        if mesh.dap.rank == 0:
            rank, size = mesh.data.rank, mesh.data.size
            own = TrainingLoader(reader, config, device, run.position, rank, size, stop)
            stack.enter_context(own)
        loader = shared(own, mesh.dap, device)
        with exhaustion_explained(trainer.checkpointing):
            return run.go(loader, files, watch, stop)


def _open(config: Config, shards: Path, mesh: Mesh) -> tuple[ShardReader, TrainingSampler, Inputs]:
    """Open the data; fails, before anything is written, if ranks cannot share or draw samples."""
    local_batch_size(config.training, mesh.data.size)
    reader = ShardReader(shards)
    sampler = TrainingSampler(reader.index, config.sampling, config.seed)
    if mesh.first:
        warn_of_other_settings(shards, config)
    return reader, sampler, inputs_of(config, shards)


def _starting_point(config: Config, out: Path, inputs: Inputs, resume: bool) -> Path | None:
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
        logger.warning("%s: going on with other data, since training.accept_new_data is set", last)
    if metadata.step < config.training.steps:
        logger.info("continuing from %s", last)
    else:
        steps = config.training.steps
        logger.info("%s: complete, nothing is left to do: training.steps is %d", last, steps)
    return last
