"""Where a step's time goes: traces to look at, and tables by module and by kernel."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, get_args

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from scalefold.bench.measure import filled, prepared_samples, released
from scalefold.bench.module_costs import Cost, Phase, module_costs, named_modules, named_range
from scalefold.bench.record import provenance, write_record
from scalefold.bench.trace import Trace, trace
from scalefold.bench.variation import varied
from scalefold.config.schema import Config
from scalefold.features.contract import Features
from scalefold.io.atomic import make_folder
from scalefold.train.assemble import assemble
from scalefold.train.sample import SampleGradient

_LEAST_SHARE: Final = 0.005  # of the whole: smaller rows are left out of printed tables
_KERNEL_ROWS: Final = 30
_PHASES: Final[tuple[Phase, ...]] = get_args(Phase)


def profile_step(
    config: Config, shards: Path, out: Path, *, device: torch.device, console: Console
) -> dict[str, Any]:
    """Trace one recycling pass, one training pass, and a whole step, and say what they cost.

    The passes are launched one kernel after the other, since a captured graph does not know whose
    its kernels are, and nothing is compiled over modules; the whole step is made as configured.

    Parameters
    ----------
    out : Path
        Folder; gets ``recycling-pass.json.gz``, ``training-pass.json.gz`` and ``step.json.gz``
        (Chrome traces, for https://ui.perfetto.dev); ``costs.json``, all kernels of all modules;
        and ``modules.json``, its sums by module, as in the printed tables.

    Raises
    ------
    InputError
        The shards cannot be used, or the folder cannot be written to.
    """
    make_folder(out)
    one_sample = varied(config, {"training.global_batch_size": 1})
    (passes,) = prepared_samples(one_sample, shards, device)
    with released(device):
        by_pass = _profile_passes(config, passes[0], out, device)
    whole = _profile_step(one_sample, [passes[:1]], out, device)
    result = provenance("profile", config, device) | {"filled": filled([passes])}
    modules = dict(result)
    for name, costs in by_pass.items():
        console.print(_module_table(name, costs))
        modules[name] = {"seconds": _total(costs), "modules": _module_rows(costs)}
        result[name] = {
            "seconds": _total(costs),
            "launches": sum(cost.launches for cost in costs),
            "costs": [dataclasses.asdict(cost) for cost in costs],
        }
    console.print(_kernel_table(whole))
    result["step"] = {
        "busy_seconds": whole.busy_seconds,
        "launches": len(whole.work),
        "kernels": [
            {"kernel": name, "seconds": seconds, "launches": launches}
            for name, seconds, launches in _by_kernel(whole)
        ],
    }
    write_record(result, out / "costs.json")
    write_record(modules, out / "modules.json")
    return result


def _profile_passes(
    config: Config, features: Features, out: Path, device: torch.device
) -> dict[str, list[Cost]]:
    """Costs by module of a recycling pass and of a training pass, both without graphs."""
    eager = varied(config, {"training.cuda_graphs": False, "training.compile": False})
    parts = assemble(eager, device)

    def backward(loss: Tensor) -> None:
        with named_range("(gradients)"):
            parts.parameters.backward(loss)

    gradient = SampleGradient(parts.model, backward, config)
    previous = gradient.before_first(features)
    with torch.no_grad():
        templates = gradient.embed_templates(features)

    def training_pass() -> None:
        with named_range("(loss)"):  # what is in no module, and not in the gradients
            gradient([features])

    def recycling_pass() -> None:
        with named_range("(pass)"):
            gradient.recycle(features, previous, templates)

    costs = {}
    with named_modules(parts.model):
        works: dict[str, Callable[[], None]] = {
            "recycling pass": recycling_pass,
            "training pass": training_pass,
        }
        for name, work in works.items():
            work()  # compiles what is to be compiled
            file = out / f"{name.replace(' ', '-')}.json.gz"
            costs[name] = module_costs(trace(work, file, device))
    return costs


def _profile_step(
    config: Config, samples: list[list[Features]], out: Path, device: torch.device
) -> Trace:
    """A whole step without recycling, as configured."""
    parts = assemble(config, device)
    rate = config.optimiser.learning_rate
    parts.step(samples, rate)  # compiles, captures
    return trace(
        lambda: parts.step(samples, rate), out / "step.json.gz", device, host=device.type != "cuda"
    )


def _total(costs: Sequence[Cost]) -> float:
    return sum(cost.seconds for cost in costs)


def _module_table(name: str, costs: Sequence[Cost]) -> Table:
    total = _total(costs)
    table = Table(
        f"{name}: module",
        "forward ms",
        "backward ms",
        "recomputed ms",
        "% of all",
        "launches",
        title=f"{name}: {total * 1e3:.1f} ms of device work",
    )
    for row in _module_rows(costs):
        module, milliseconds = row["module"], row["milliseconds"]
        table.add_row(
            "  " * module.count(".") + module.rsplit(".", 1)[-1],
            *(f"{milliseconds[phase]:.2f}" for phase in _PHASES),
            f"{0.1 * sum(milliseconds.values()) / total:.1f}",
            str(row["launches"]),
        )
    return table


def _module_rows(costs: Sequence[Cost]) -> list[dict[str, Any]]:
    """Time of each module with all that is in it, as a tree; small ones are left out."""
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for cost in costs:
        parts = cost.module.split(".")
        for depth in range(len(parts)):
            row = sums[".".join(parts[: depth + 1])]
            row[cost.phase] += cost.seconds
            row["launches"] += cost.launches
    least = _LEAST_SHARE * _total(costs)
    return [
        {
            "module": module,
            "milliseconds": {phase: round(sums[module][phase] * 1e3, 3) for phase in _PHASES},
            "launches": int(sums[module]["launches"]),
        }
        for module in sorted(sums, key=lambda path: _tree_order(path, sums))
        if _all_phases(sums[module]) >= least
    ]


def _tree_order(path: str, sums: dict[str, dict[str, float]]) -> list[tuple[float, str]]:
    """Parents before what is in them, siblings by their time."""
    parts = path.split(".")
    paths = [".".join(parts[: depth + 1]) for depth in range(len(parts))]
    return [(-_all_phases(sums[p]), p) for p in paths]


def _all_phases(row: dict[str, float]) -> float:
    return sum(row[phase] for phase in _PHASES)


def _by_kernel(found: Trace) -> list[tuple[str, float, int]]:
    seconds: dict[str, float] = defaultdict(float)
    launches: dict[str, int] = defaultdict(int)
    for span in found.work:
        seconds[span.name] += span.seconds
        launches[span.name] += 1
    names = sorted(seconds, key=lambda name: -seconds[name])
    return [(name, seconds[name], launches[name]) for name in names]


def _kernel_table(found: Trace) -> Table:
    rows = _by_kernel(found)
    busy = found.busy_seconds
    table = Table(
        "kernel",
        "ms",
        "% of all",
        "launches",
        title=f"step without recycling: {busy * 1e3:.1f} ms busy, {len(found.work)} launches",
    )
    for name, seconds, launches in rows[:_KERNEL_ROWS]:
        table.add_row(
            name[:100], f"{seconds * 1e3:.2f}", f"{100 * seconds / busy:.1f}", str(launches)
        )
    return table
