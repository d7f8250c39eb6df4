"""The ablation: from plain PyTorch to everything, one change of the configuration a rung.

The rungs are those of the ScaleFold paper (arXiv 2404.11068, Fig. 8), with kernels one by one. Each
holds all changes of the rungs before it.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, get_args

import torch
from rich.console import Console
from rich.table import Table

from scalefold.bench.flops import StepFlops, count_flops, peak_flops_per_second
from scalefold.bench.measure import measure_steps, prepared_samples, released, synchronise
from scalefold.bench.record import earlier_record, part_record, provenance, write_record
from scalefold.bench.step import step_table
from scalefold.bench.variation import varied
from scalefold.config.identity import run_key
from scalefold.config.schema import Config, KernelPackage
from scalefold.errors import InputError
from scalefold.loader.loader import TrainingLoader
from scalefold.shards.reader import ShardReader
from scalefold.train.assemble import TrainingParts, assemble

_TIMED_SECONDS: Final = 1.0
"""Steps of a recycling count are repeated until they took about this long."""
_LOADED_SECONDS: Final = 6.0
"""Likewise steps with loading."""


@dataclass(frozen=True)
class Rung:
    """One change.

    Attributes
    ----------
    changes : dict
        Settings by their dotted keys.
    """

    name: str
    title: str
    changes: dict[str, Any]


def rungs() -> tuple[Rung, ...]:
    """All rungs, from the bottom."""
    kernels: tuple[str, ...] = get_args(KernelPackage)
    return (
        Rung(
            "baseline",
            "plain PyTorch, TF32, blocks recomputed, samples made in the step",
            {
                "training.precision": "tf32",
                "training.recomputation": "full",
                "training.kernels": "torch",
                "training.cuda_graphs": False,
                "training.compile": False,
                "training.loader_workers": 0,
                "training.max_staleness": 0,
            },
        ),
        Rung("bf16", "trunk in bfloat16", {"training.precision": "bf16"}),
        Rung(
            "loader",
            "non-blocking loader, features on the GPU beside the step",
            {"training.loader_workers": 4, "training.max_staleness": 512},
        ),
        *(
            Rung(
                name,
                f"kernels: {name.replace('_', ' ')}",
                {"training.kernels": list(kernels[: number + 1])},
            )
            for number, name in enumerate(kernels)
        ),
        Rung(
            "compiled", "structure module, embedders, losses compiled", {"training.compile": True}
        ),
        Rung("graphs", "CUDA graphs", {"training.cuda_graphs": True}),
        Rung("kept", "nothing recomputed", {"training.recomputation": "none"}),
    )


def bench_ladder(
    config: Config,
    shards: Path,
    out: Path,
    *,
    only: Collection[str] = (),
    parts: Sequence[Path] = (),
    device: torch.device,
    console: Console,
) -> dict[str, Any]:
    """Measure each rung, and write all of them as JSON again after each.

    Rungs that the file holds already, by the same code on the same kind of device, are not measured
    again.

    Parameters
    ----------
    config : Config
        Shapes, model, loss and optimiser.
    only : collection of str
        Measure these rungs alone; default all.
    parts : sequence of Path
        Files of other calls, by the same code on the same kind of device, whose rungs are taken
        over: several GPUs can share the work.

    Raises
    ------
    InputError
        An unknown rung, a part that is not there or of something else, shards that cannot be used,
        a file that cannot be written.
    """
    ladder = rungs()
    unknown = set(only) - {rung.name for rung in ladder}
    if unknown:
        names = ", ".join(rung.name for rung in ladder)
        raise InputError(f"no rung {', '.join(sorted(unknown))}; there are {names}")
    head = provenance("ladder", config, device) | {
        "peak_flops_per_second": peak_flops_per_second(device),
        "samples_per_step": config.training.global_batch_size,
        "run_key": run_key(config),
    }
    earlier = [*(part_record(file, head) for file in parts), earlier_record(out, head)]
    done = {row["rung"]: row for record in earlier for row in record.get("rungs", ())}
    flops = count_flops(config)
    result = head | {"rungs": []}
    for rung, settings in _cumulative(ladder):
        if rung.name not in done and (not only or rung.name in only):
            loads = "training.loader_workers" in rung.changes or rung is ladder[-1]
            row = {"rung": rung.name, "title": rung.title, "changes": rung.changes}
            row |= _measure(varied(config, settings), shards, flops, device, with_loading=loads)
            done[rung.name] = row
            console.print(ladder_table([row]))
        # All of them, in order: what a broken-off call leaves has also the rungs above.
        result["rungs"] = [done[rung.name] for rung in ladder if rung.name in done]
        write_record(result, out)
    console.print(ladder_table(result["rungs"]))
    return result


def _cumulative(ladder: Sequence[Rung]) -> Iterator[tuple[Rung, dict[str, Any]]]:
    settings: dict[str, Any] = {}
    for rung in ladder:
        settings = settings | rung.changes
        yield rung, settings


def _measure(
    config: Config, shards: Path, flops: StepFlops, device: torch.device, *, with_loading: bool
) -> dict[str, Any]:
    with released(device):
        try:
            parts = assemble(config, device)
            measured = measure_steps(
                parts,
                config,
                prepared_samples(config, shards, device),
                flops,
                seconds=_TIMED_SECONDS,
                device=device,
            )
            row = measured.rounded()
            if with_loading:
                row["loading_seconds"] = _loading_seconds(
                    parts, config, shards, measured.step_seconds_by_recycling, device
                )
            return row
        except torch.OutOfMemoryError as error:
            return {"out_of_memory": str(error).splitlines()[0]}


def _loading_seconds(
    parts: TrainingParts,
    config: Config,
    shards: Path,
    step_seconds: Sequence[float],
    device: torch.device,
) -> float:
    """What the run's own loader adds to a mean step: time of real steps less that of prepared."""
    warm_up = 2
    mean = sum(step_seconds) / len(step_seconds)
    steps = max(4, min(40, int(_LOADED_SECONDS / mean)))
    config = varied(config, {"training.steps": warm_up + steps})
    prepared, started = 0.0, 0.0
    with TrainingLoader(ShardReader(shards), config, device) as loader:
        for number, batch in enumerate(loader):
            if number == warm_up:
                synchronise(device)
                started = time.perf_counter()
            parts.step(batch.samples, config.optimiser.learning_rate)
            if number >= warm_up:
                prepared += step_seconds[batch.recycling]
        synchronise(device)
        seconds = time.perf_counter() - started
    return float(f"{max(0.0, seconds - prepared) / steps:.3g}")


def total_seconds(row: Mapping[str, Any]) -> float:
    """Seconds of a mean step of a rung, loading included where it was measured."""
    return float(row["mean_step_seconds"] + row.get("loading_seconds", 0.0))


def ladder_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Rungs as a table, each with how many times faster it is than the first."""
    measured = [row for row in rows if "out_of_memory" not in row]

    def loading(row: Mapping[str, Any]) -> str:
        return f"{row['loading_seconds']:.3f}" if "loading_seconds" in row else "-"

    def gain(row: Mapping[str, Any]) -> str:
        return f"{total_seconds(measured[0]) / total_seconds(row):.2f}"

    named = [(row["rung"], row) for row in rows]
    return step_table(named, "rung", {"loading s": loading, "× first": gain})
