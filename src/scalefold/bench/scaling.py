"""Several processes: do they train as one does, and how much longer, or shorter, is their step?

Every process first makes the steps of the whole batch alone, then its part of them with the others.
So both ways run on the same GPUs, and only the division of the work differs: other samples, or
(``parallel.dap``) other parts of the same sample.
"""

from __future__ import annotations

import hashlib
import re
import statistics
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

from scalefold.bench.gradient_error import agreement, step_gradient
from scalefold.bench.measure import prepared_samples, released, require_finite, synchronise
from scalefold.bench.record import provenance, write_record
from scalefold.bench.trace import gpu_work
from scalefold.bench.variation import varied
from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.features.contract import Features
from scalefold.loader.loader import TrainingLoader
from scalefold.loader.shared_batches import SharedLoader
from scalefold.parallel import SINGLE, Mesh, Ranks
from scalefold.parallel.agreement import on_all
from scalefold.parallel.group_axis import GroupAxis
from scalefold.parallel.ranks import broadcast_tensors
from scalefold.shards.reader import ShardReader
from scalefold.train.assemble import TrainingParts, assemble
from scalefold.train.step_numbers import Readback

_TIMED_STEPS: Final = 10
"""Steps of each recycling count: a number, not a time, since all must make as many."""

_EXCHANGES: Final = re.compile("nccl|exchange_kernel", re.IGNORECASE)
"""Names of the kernels of an exchange."""


@dataclass(frozen=True)
class _Bench:
    """What all measurements have in common; ``everybody`` is the mesh of the processes."""

    config: Config
    shards: Path
    device: torch.device
    everybody: Mesh


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

    Losses are of training from random weights, one sample in each step for a process, or for those
    that share a sample. Times are of steps whose features are prepared, one sample a process both
    alone and together; of several processes the slowest counts. Where processes share a sample,
    the gradients of both ways are compared with one in float32, see `agreement`.

    Parameters
    ----------
    out : Path
        JSON file, written by the first process.
    mesh : Mesh
        At least two processes.

    Returns
    -------
    dict or None
        What was written; None on all processes but the first.

    Raises
    ------
    InputError
        If there is one process only, the shards cannot be used, or a step was not finite.
    """
    if mesh.world.size < 2:
        raise InputError(
            "scaling needs several processes: torchrun --nproc-per-node 2 -m "
            "scalefold bench scaling …"
        )
    on_all(mesh.world, lambda: ShardReader(shards))  # what is wrong with them is said once
    config = varied(
        config,
        {
            "training.global_batch_size": mesh.data.size,
            "training.steps": steps,
            "training.loader_workers": 0,
            "training.max_staleness": 0,
        },
    )
    bench = _Bench(config, shards, device, mesh)
    alone, together = (_measured(bench, used) for used in (SINGLE, mesh))
    result = provenance("scaling", config, device) | {
        "processes": mesh.world.size,
        "processes_a_sample": mesh.dap.size,
        "recomputation": {"one": alone["recomputation"], "all": together["recomputation"]},
        "training_steps": _compared(alone, together),
        "step_seconds_by_recycling": {"one": alone["seconds"], "all": together["seconds"]},
        "efficiency": round(sum(alone["seconds"]) / sum(together["seconds"]), 4),
        "peak_memory_gib": {"one": alone["peak_gib"], "all": together["peak_gib"]},
        "gpu_work_by_recycling": {"one": alone["work"], "all": together["work"]},
    }
    if isinstance(mesh.axis, GroupAxis):
        result["exchange"] = mesh.axis.exchange
        result["gradient"] = _agreement(bench, alone["gradient"], together["gradient"])
    if not mesh.first:
        return None
    write_record(result, out)
    console.print(_table(result))
    return result


def _measured(bench: _Bench, mesh: Mesh) -> dict[str, Any]:
    config, device, everybody = bench.config, bench.device, bench.everybody
    with released(device):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        parts = assemble(config, device, mesh)
        losses = _losses(parts, bench, mesh)
        weights = parts.parameters.master.cpu().numpy().tobytes()
        passes = _passes(bench, everybody.data.rank, everybody.dap)
        seconds = _step_seconds(parts, passes, bench)
        peak = None
        if device.type == "cuda":
            peak = round(torch.cuda.max_memory_allocated(device) / 2**30, 2)
        return {
            "losses": losses,
            "recomputation": parts.checkpointing,
            "weights": everybody.world.all_gather_object(hashlib.sha256(weights).hexdigest()),
            "seconds": seconds,
            "peak_gib": peak,
            "work": _gpu_work(parts, passes, bench),
            "gradient": _gradient(parts, bench) if everybody.dap.size > 1 else None,
        }


def _agreement(bench: _Bench, alone: torch.Tensor, together: torch.Tensor) -> dict[str, Any]:
    exact = varied(
        bench.config,
        {
            "training.precision": "fp32",
            "training.kernels": "torch",
            "training.compile": False,
            "training.cuda_graphs": False,
            "training.recomputation": "full",
        },
    )
    with released(bench.device):
        reference = _gradient(assemble(exact, bench.device), bench)
    return agreement(alone, together, reference)


def _gradient(parts: TrainingParts, bench: _Bench) -> torch.Tensor:
    """Gradient of the first sample, which all ranks share here."""
    passes = _passes(bench, 0, bench.everybody.world)
    # Without recycling: it would enlarge roundings, where a distance changes its bin.
    return step_gradient(parts, passes[-1:], bench.config.optimiser.clip_norm)


def _passes(bench: _Bench, number: int, ranks: Ranks) -> list[Features]:
    """A sample's passes, the same bits on all of these ranks."""
    passes = prepared_samples(bench.config, bench.shards, bench.device)[number]
    tensors = {id(t): t for features in passes for t in features.values()}
    broadcast_tensors(ranks, list(tensors.values()))
    return passes


def _losses(parts: TrainingParts, bench: _Bench, mesh: Mesh) -> list[float]:
    """Train, and return each step's mean loss."""
    config, device, losses = bench.config, bench.device, []
    own = None
    if mesh.dap.rank == 0:
        reader, rank, size = ShardReader(bench.shards), mesh.data.rank, mesh.data.size
        own = TrainingLoader(reader, config, device, rank=rank, world_size=size)
    loader = SharedLoader(own, mesh.dap, device)
    for _ in range(config.training.steps):
        numbers = parts.step(next(loader).samples, config.optimiser.learning_rate)
        require_finite(numbers)
        losses.append(Readback(numbers).get().means["loss"])
    return losses


def _step_seconds(parts: TrainingParts, passes: list[Features], bench: _Bench) -> list[float]:
    """Median of a step by recycling count; of each step, the slowest process counts."""
    world, device = bench.everybody.world, bench.device

    def timed(recycling: int) -> float:
        _meet(bench.everybody, device)
        started = time.perf_counter()
        _step(parts, passes[: recycling + 1], bench)
        return time.perf_counter() - started

    medians = []
    for recycling in range(len(passes)):
        timed(recycling)  # to warm up
        times = [timed(recycling) for _ in range(_TIMED_STEPS)]
        slowest = map(max, zip(*world.all_gather_object(times), strict=True))
        medians.append(float(f"{statistics.median(slowest):.5g}"))
    return medians


def _step(parts: TrainingParts, passes: list[Features], bench: _Bench) -> None:
    numbers = parts.step([passes], bench.config.optimiser.learning_rate)
    synchronise(bench.device)
    require_finite(numbers)


def _gpu_work(
    parts: TrainingParts, passes: list[Features], bench: _Bench
) -> list[dict[str, Any]] | None:
    """What this process's GPU does in a step without recycling, and with one more pass.

    A kernel of an exchange also waits for the other ranks.
    """
    if bench.device.type != "cuda":
        return None
    found = []
    for count in range(1, min(len(passes), 2) + 1):
        _meet(bench.everybody, bench.device)
        trace = gpu_work(partial(_step, parts, passes[:count], bench), bench.device)
        exchanges = [span for span in trace.work if _EXCHANGES.search(span.name)]
        found.append(
            {
                "launches": len(trace.work),
                "busy_seconds": round(trace.busy_seconds, 5),
                "exchanges": len(exchanges),
                "exchange_seconds": round(sum(span.seconds for span in exchanges), 5),
            }
        )
    return found


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
    shared_by = result["processes_a_sample"]
    ratio = (
        f"{100 * result['efficiency']:.1f} % efficiency"
        if shared_by == 1
        else f"{shared_by} processes a sample are {result['efficiency']:.2f} times as fast as one"
    )
    table = Table(
        "recycles",
        "one process, s",
        f"{result['processes']} processes, s",
        title=f"{ratio}; losses of {len(steps['losses']['one'])} steps differ by "
        f"{steps['largest_relative_difference']:.1e} of themselves at most",
    )
    for recycles, pair in enumerate(zip(seconds["one"], seconds["all"], strict=True)):
        table.add_row(str(recycles), *(f"{value:.4f}" for value in pair))
    return table
