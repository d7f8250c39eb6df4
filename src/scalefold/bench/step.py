"""Time whole training steps under one or several settings."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

from scalefold.bench.flops import StepFlops, count_flops, peak_flops_per_second
from scalefold.bench.measure import (
    filled,
    measure_steps,
    prepared_samples,
    released,
    require_finite,
)
from scalefold.bench.record import provenance, write_record
from scalefold.bench.synthetic_shards import given_or_full
from scalefold.bench.variation import varied
from scalefold.config.schema import Config
from scalefold.engine.memory import limit_memory
from scalefold.train.assemble import assemble

_SAMPLES: Final = {"samples/s": lambda row: f"{row['samples_per_second']:.2f}"}


def bench_step(
    config: Config,
    shards: Path,
    out: Path,
    *,
    vary: Mapping[str, Sequence[Any]],
    seconds: float,
    memory_gib: Sequence[float],
    device: torch.device,
    console: Console,
) -> dict[str, Any]:
    """Time training steps (passes, loss, backward, clip, update, averaging) and write them as JSON.

    Features are prepared before the clock starts: loading has its own benchmark. A variant that
    does not fit into the device's memory is recorded as such.

    Parameters
    ----------
    out : Path
        JSON file, written again after each variant.
    vary : mapping
        Values to try by dotted key, such as ``training.recomputation: [none, full]``; with several
        keys, all combinations.
    seconds : float
        Steps of each recycling count are repeated for about this long; the median counts.
    memory_gib : sequence of float
        Limits of torch's memory, as on smaller GPUs, one after the other. Empty for no limit.

    Raises
    ------
    InputError
        A variant is not possible, the shards cannot be used, or the file cannot be written.
    """
    settings = [dict(zip(vary, values)) for values in itertools.product(*vary.values())]
    configs = [varied(config, changes) for changes in settings]
    result = provenance("step", config, device) | {
        "peak_flops_per_second": peak_flops_per_second(device),
        "variants": [],
    }
    flops = count_flops(config)
    limits = memory_gib or (None,)
    for limit, (changes, variant) in itertools.product(limits, zip(settings, configs, strict=True)):
        if limit is not None:
            limit_memory(limit, device)
        row = {"settings": changes, "memory_limit_gib": limit}
        row |= _measure(variant, shards, flops, seconds, device)
        result["variants"].append(row)
        write_record(result, out)
        console.print(step_table([(_said(changes, limit), row)]))
    return result


def _measure(
    config: Config, shards: Path, flops: StepFlops, seconds: float, device: torch.device
) -> dict[str, Any]:
    """Assemble and time one variant, or record that it does not fit."""
    with released(device):
        try:
            parts, samples = assemble(config, device), prepared_samples(config, shards, device)
            measured = measure_steps(parts, config, samples, flops, seconds=seconds, device=device)
            return {
                "recomputation": parts.checkpointing,
                "filled": filled(samples),
                **measured.rounded(),
            }
        except torch.OutOfMemoryError as error:
            return {"out_of_memory": str(error).splitlines()[0]}


def first_step(config: Config, device: torch.device) -> float:
    """Make one training step of made-up full samples; return its seconds.

    Triton's cache and that of torch.compile then hold what training with these settings needs.
    """
    with given_or_full(None, config.features) as shards:
        parts, samples = assemble(config, device), prepared_samples(config, shards, device)
    started = time.perf_counter()
    require_finite(parts.step(samples, config.optimiser.learning_rate))
    return time.perf_counter() - started


def step_table(
    rows: Sequence[tuple[str, Mapping[str, Any]]],
    title: str = "",
    more: Mapping[str, Callable[[Mapping[str, Any]], str]] = _SAMPLES,
) -> Table:
    """Named measurements as a table; ``more`` gives further columns, each by its title."""
    head = (title, "s by recycling", "mean s", *more)
    table = Table(*head, "launches", "GPU busy s", "peak GiB", "MFU")
    for name, row in rows:
        if "out_of_memory" in row:
            table.add_row(name, "out of memory", *["-"] * (len(table.columns) - 2))
            continue
        peak, used = row["peak_memory_gib"], row["flop_utilisation"]
        table.add_row(
            name,
            " / ".join(f"{seconds:.3f}" for seconds in row["step_seconds_by_recycling"]),
            f"{row['mean_step_seconds']:.3f}",
            *(cell(row) for cell in more.values()),
            _first_and_more(row["launches_by_recycling"], "{}"),
            _first_and_more(row["gpu_busy_seconds_by_recycling"], "{:.3f}"),
            "-" if peak is None else f"{peak:.1f}",
            "-" if used is None else f"{100 * used:.1f} %",
        )
    return table


def _first_and_more(values: Sequence[float] | None, form: str) -> str:
    """A number without recycling, and what each pass adds."""
    if values is None:
        return "-"
    first = form.format(values[0])
    return first if len(values) == 1 else f"{first} + {form.format(values[1] - values[0])}"


def _said(changes: Mapping[str, Any], limit: float | None) -> str:
    said = [f"{key.rsplit('.', 1)[-1]} {value}" for key, value in changes.items()]
    return ", ".join(said if limit is None else [*said, f"within {limit:g} GiB"])
