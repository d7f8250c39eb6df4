"""Does a faster way of training learn alike? Loss curves of two configurations, several seeds each.

A seed decides on the initial weights and on every draw, the same in both configurations. So curves
of one configuration differ from seed to seed by what chance does; two configurations are alike if
the means of their curves differ by no more.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.table import Table

from scalefold.bench.measure import released
from scalefold.bench.record import earlier_record, provenance, write_record
from scalefold.config.identity import run_key
from scalefold.config.schema import Config
from scalefold.errors import InputError
from scalefold.loader.loader import TrainingLoader
from scalefold.optim.schedule import learning_rate
from scalefold.shards.reader import ShardReader
from scalefold.train.assemble import assemble

WINDOWS: Final = 20
"""Parts of a curve; single steps are too noisy to compare."""


def bench_curves(
    config: Config,
    reference: Config,
    shards: Path,
    out: Path,
    *,
    seeds: Sequence[int],
    device: torch.device,
    console: Console,
) -> dict[str, Any]:
    """Train with both configurations from each seed, compare the loss curves, write them as JSON.

    Curves of seeds that the file holds already, by the same code on the same kind of device, are
    kept.

    Parameters
    ----------
    config, reference : Config
        Of equally many steps, which `WINDOWS` divides.
    out : Path
        JSON file, written again after each seed.
    seeds : sequence of int
        At least two.

    Raises
    ------
    InputError
        If there are too few seeds, the numbers of steps do not fit, or a loss is not finite.
    """
    steps = config.training.steps
    if len(seeds) < 2:
        raise InputError(f"{len(seeds)} seed: a spread needs two at least")
    if steps != reference.training.steps or steps % WINDOWS:
        raise InputError(
            f"training.steps is {steps} and {reference.training.steps} (reference): they must be "
            f"equal, and a multiple of {WINDOWS}"
        )
    reader = ShardReader(shards)
    both = {"reference": reference, "ours": config}
    result = provenance("curves", config, device) | {
        "steps": steps,
        "keys": {name: run_key(one) for name, one in both.items()},
        "training": {name: one.training.model_dump(mode="json") for name, one in both.items()},
    }
    before = earlier_record(out, result)
    done = dict(zip(before.get("seeds", ()), _by_seed(before), strict=True))
    for seed in seeds:
        if seed not in done:
            done[seed] = {
                name: _curve(name, one, seed, reader, device, console) for name, one in both.items()
            }
        known = dict.fromkeys([*seeds, *done])  # of earlier calls, too
        result |= _compared({s: done[s] for s in known if s in done})
        write_record(result, out)
    console.print(_table(result))
    return result


def _by_seed(record: dict[str, Any]) -> list[dict[str, list[float]]]:
    """The pair of curves of each seed of a record."""
    curves = record.get("curves", {"reference": (), "ours": ()})
    return [dict(zip(curves, pair)) for pair in zip(*curves.values(), strict=True)]


def _compared(done: dict[int, dict[str, list[float]]]) -> dict[str, Any]:
    """Curves of some seeds, and the comparison if they are enough."""
    curves = {name: [pair[name] for pair in done.values()] for name in ("reference", "ours")}
    compared = compare(curves["ours"], curves["reference"]) if len(done) > 1 else {}
    return {"seeds": list(done), **compared, "curves": curves}


def _curve(
    name: str,
    config: Config,
    seed: int,
    reader: ShardReader,
    device: torch.device,
    console: Console,
) -> list[float]:
    """Train from a seed; means of the loss by window."""
    started = time.perf_counter()
    with released(device):
        curve = windowed(loss_curve(config.model_copy(update={"seed": seed}), reader, device))
    seconds = time.perf_counter() - started
    console.print(f"{name}, seed {seed}: loss {curve[-1]:.3f}, {seconds:.0f} s")
    return curve


def loss_curve(config: Config, reader: ShardReader, device: torch.device) -> list[float]:
    """Train without checkpoints, and return the mean loss of each step's samples.

    Raises
    ------
    InputError
        A loss was not finite, so that nothing can be compared with it.
    """
    parts = assemble(config, device)
    losses = []
    with TrainingLoader(reader, config, device) as loader:
        for batch in loader:
            numbers = parts.step(batch.samples, learning_rate(batch.step + 1, config.optimiser))
            losses.append(numbers.per_sample[:, 0].mean())
    curve = torch.stack(losses).tolist()
    for step, loss in enumerate(curve, 1):
        if not math.isfinite(loss):
            raise InputError(
                f"seed {config.seed}, training.precision {config.training.precision}: the loss of "
                f"step {step} is {loss}, so the curves cannot be compared; a lower "
                "optimiser.learning_rate may fix it"
            )
    return curve


def windowed(losses: Sequence[float]) -> list[float]:
    """Mean of each of `WINDOWS` equal parts."""
    size = len(losses) // WINDOWS
    return [statistics.fmean(losses[i : i + size]) for i in range(0, size * WINDOWS, size)]


def compare(
    ours: Sequence[Sequence[float]], reference: Sequence[Sequence[float]]
) -> dict[str, Any]:
    """Window by window: difference of the means over seeds, and the reference's spread.

    Parameters
    ----------
    ours, reference : sequence of sequence of float
        A curve for each seed.

    Returns
    -------
    dict
        ``difference`` and ``spread`` (largest minus smallest of the seeds) by window;
        ``largest_ratio`` of the one to the other; ``within_spread``, whether it is 1 at most.
    """
    differences = [
        statistics.fmean(a) - statistics.fmean(b)
        for a, b in zip(zip(*ours), zip(*reference), strict=True)
    ]
    spreads = [max(values) - min(values) for values in zip(*reference)]
    ratios = [abs(d) / s if s else float(d != 0) * 1e9 for d, s in zip(differences, spreads)]
    return {
        "difference": differences,
        "spread": spreads,
        "largest_ratio": max(ratios),
        "within_spread": max(ratios) <= 1.0,
    }


def _table(result: dict[str, Any]) -> Table:
    verdict = "within" if result["within_spread"] else "beyond"
    table = Table(
        "steps up to", "reference", "ours", "difference", "spread of seeds",
        title=f"{verdict} the spread: at most {result['largest_ratio']:.2f} of it",
    )  # fmt: skip
    means = {name: [statistics.fmean(w) for w in zip(*c)] for name, c in result["curves"].items()}
    for number in range(WINDOWS):
        row = (means["reference"], means["ours"], result["difference"], result["spread"])
        last = (number + 1) * result["steps"] // WINDOWS
        table.add_row(str(last), *(f"{values[number]:.3f}" for values in row))
    return table
