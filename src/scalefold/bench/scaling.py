"""Data parallelism: do several processes train as one does, and how much longer is their step?

Every process first makes the steps of the whole batch alone, then its part of them with the others.
So both ways run on the same GPUs, and only the exchange of gradients differs.
"""

from __future__ import annotations

import hashlib
import statistics
import time
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

from scalefold.bench.measure import prepared_samples, released, require_finite, synchronise
from scalefold.bench.record import provenance, write_record
from scalefold.bench.variation import varied
from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.features.contract import Features
from scalefold.loader.loader import TrainingLoader
from scalefold.parallel import SINGLE, Mesh
from scalefold.parallel.ranks import on_all
from scalefold.shards.reader import ShardReader
from scalefold.train.assemble import Trainer, assemble
from scalefold.train.step_numbers import Readback

_TIMED_STEPS: Final = 10
"""Of each recycling count: a number, not a time, since all processes must make as many."""


def bench_scaling(
    config: Config,
    shards: Path,
    out: Path,
    *,
    steps: int,
    device: torch.device,
    mesh: Mesh,
    console: Console,
) -> dict[str, Any] | None:
    """Compare training with all processes and with one, and write losses and times as JSON.

    Losses are of training from random weights, one sample a process in each step. Times are of
    steps whose features are prepared, one sample a process both alone and together; of several
    processes the slowest counts.

    Parameters
    ----------
    config : Config
    shards : Path
        Where the samples come from.
    out : Path
        JSON file, written by the first process.
    steps : int
        Training steps whose losses are compared.
    device : torch.device
        Of this process.
    mesh : Mesh
        At least two processes.
    console : Console

    Returns
    -------
    dict or None
        What was written; None on all processes but the first.

    Raises
    ------
    InputError
        If there is one process only, the shards cannot be used, or a step was not finite.
    """
    size = mesh.data.size
    if size < 2:
        raise InputError(
            "scaling needs several processes: torchrun --nproc-per-node 2 -m "
            "scalefold bench scaling …"
        )
    on_all(mesh.world, lambda: ShardReader(shards))  # what is wrong with them is said once
    config = varied(
        config,
        {
            "training.global_batch_size": size,
            "training.steps": steps,
            "training.loader_workers": 0,
            "training.max_staleness": 0,
        },
    )
    alone, together = (_measured(config, shards, device, m, mesh) for m in (SINGLE, mesh))
    if not mesh.first:
        return None
    result = provenance("scaling", config, device) | {
        "processes": size,
        "training_steps": _compared(alone, together),
        "step_seconds_by_recycling": {
            "one": alone["seconds"],
            "all": together["seconds"],
        },
        "efficiency": round(sum(alone["seconds"]) / sum(together["seconds"]), 4),
    }
    write_record(result, out)
    console.print(_table(result))
    return result


def _measured(
    config: Config, shards: Path, device: torch.device, mesh: Mesh, everybody: Mesh
) -> dict[str, Any]:
    with released(device):
        trainer = assemble(config, device, mesh)
        losses = _losses(trainer, config, shards, device, mesh)
        weights = trainer.parameters.master.cpu().numpy().tobytes()
        place = everybody.data.rank
        passes = prepared_samples(config, shards, device)[place]
        return {
            "losses": losses,
            "weights": everybody.data.gather(hashlib.sha256(weights).hexdigest()),
            "seconds": _step_seconds(trainer, passes, config, device, everybody),
        }


def _losses(
    trainer: Trainer, config: Config, shards: Path, device: torch.device, mesh: Mesh
) -> list[float]:
    """Train, and return each step's mean loss."""
    losses = []
    rank, size = mesh.data.rank, mesh.data.size
    with TrainingLoader(ShardReader(shards), config, device, rank=rank, world_size=size) as loader:
        for batch in loader:
            numbers = trainer.step(batch.samples, config.optimiser.learning_rate)
            require_finite(numbers)
            losses.append(Readback(numbers).get().means["loss"])
    return losses


def _step_seconds(
    trainer: Trainer,
    passes: list[Features],
    config: Config,
    device: torch.device,
    everybody: Mesh,
) -> list[float]:
    """Median of a step by recycling count; of each step, the slowest process counts."""

    def timed(recycling: int) -> float:
        _meet(everybody, device)
        started = time.perf_counter()
        numbers = trainer.step([passes[: recycling + 1]], config.optimiser.learning_rate)
        synchronise(device)
        seconds = time.perf_counter() - started
        require_finite(numbers)
        return seconds

    medians = []
    for recycling in range(len(passes)):
        timed(recycling)  # to warm up
        times = [timed(recycling) for _ in range(_TIMED_STEPS)]
        slowest = map(max, zip(*everybody.data.gather(times), strict=True))
        medians.append(float(f"{statistics.median(slowest):.5g}"))
    return medians


def _meet(mesh: Mesh, device: torch.device) -> None:
    synchronise(device)
    mesh.world.barrier()
    synchronise(device)


def _compared(alone: dict[str, Any], together: dict[str, Any]) -> dict[str, Any]:
    pairs = list(zip(alone["losses"], together["losses"], strict=True))
    return {
        "losses": {"one": alone["losses"], "all": together["losses"]},
        "largest_relative_difference": max(abs(a - b) / abs(a) for a, b in pairs),
        "processes_have_equal_weights": len(set(together["weights"])) == 1,
        "equal_to_one_process": set(together["weights"]) == set(alone["weights"]),
    }


def _table(result: dict[str, Any]) -> Table:
    steps, seconds = result["training_steps"], result["step_seconds_by_recycling"]
    table = Table(
        "recycles",
        "one process, s",
        f"{result['processes']} processes, s",
        title=f"{100 * result['efficiency']:.1f} % efficiency; losses of "
        f"{len(steps['losses']['one'])} steps differ by "
        f"{steps['largest_relative_difference']:.1e} of themselves at most",
    )
    for recycles, pair in enumerate(zip(seconds["one"], seconds["all"], strict=True)):
        table.add_row(str(recycles), *(f"{value:.4f}" for value in pair))
    return table
