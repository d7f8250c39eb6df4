"""Time the evaluation of a set of whole chains.

The chains are made up, so no data set is needed: contents do not change the time. Their lengths are
quantiles of a distribution that is roughly that of CAMEO's targets: most between 100 and 500
residues.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from scalefold.bench.lengths import CAMEO_LIKE
from scalefold.bench.record import provenance, write_record
from scalefold.bench.synthetic_shards import write_synthetic_shards
from scalefold.config.schema import Config
from scalefold.evaluate.chains import evaluate_chains
from scalefold.features.contract import Features
from scalefold.model import AlphaFold
from scalefold.predict.predictor import LENGTH_STEP, Prediction, choose_precision, predictor
from scalefold.progress import LiveLine
from scalefold.shards.reader import ShardReader


def bench_evaluation(
    config: Config,
    out: Path,
    *,
    num_chains: int,
    num_rows: int,
    device: torch.device,
    console: Console,
) -> dict[str, Any]:
    """Predict and score made-up chains with random weights, and write the times as JSON.

    Everything that an evaluation does for its chains is timed: reading, features, compilation and
    capture, all passes, scores. The model is assembled before.

    Parameters
    ----------
    config : Config
        Model, sizes of the features, ``evaluation``.
    """
    lengths = CAMEO_LIKE.quantiles(num_chains)
    with tempfile.TemporaryDirectory() as folder:
        shards = Path(folder)
        write_synthetic_shards(
            shards, lengths=lengths, num_rows=num_rows, num_hits=4, split="validation"
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.seed)
            weights = AlphaFold(config.model).state_dict()
        clock = _Clock(predictor(config, weights, device))
        chains = [(f"s{i:03d}_A", "validation", length) for i, length in enumerate(lengths)]
        with LiveLine("evaluating", num_chains, console, seconds_between_lines=10) as progress:
            started = time.perf_counter()
            results, _ = evaluate_chains(
                clock, ShardReader(shards), chains, config, device, None, progress
            )
            seconds = time.perf_counter() - started
    result = provenance("evaluation", config, device) | {
        "lengths": {"distribution": str(CAMEO_LIKE), "residues": lengths},
        "alignment_rows": num_rows,
        "recycling": config.evaluation.recycling,
        "precision": choose_precision(config, device),
        "counts": {fate: len(rows) for fate, rows in results.items()},
        "seconds": round(seconds, 3),
        "prediction_seconds": round(sum(clock.seconds), 3),
        "by_length": clock.by_length(),
    }
    write_record(result, out)
    console.print(_table(result))
    return result


class _Clock:
    """Times predictions."""

    def __init__(self, predict: Callable[[Sequence[Features]], Prediction]) -> None:
        self._predict = predict
        self.seconds: list[float] = []
        self._lengths: list[int] = []

    def __call__(self, passes: Sequence[Features]) -> Prediction:
        started = time.perf_counter()
        prediction = self._predict(passes)  # comes to the CPU, so nothing is left to wait for
        self.seconds.append(time.perf_counter() - started)
        self._lengths.append(passes[0]["aatype"].shape[1])
        return prediction

    def by_length(self) -> list[dict[str, Any]]:
        """By the length that chains are padded to on a GPU; the first chain of each pays for it."""
        groups: dict[int, list[float]] = defaultdict(list)
        for length, seconds in zip(self._lengths, self.seconds, strict=True):
            groups[-(-length // LENGTH_STEP) * LENGTH_STEP].append(seconds)
        return [
            {
                "up_to_residues": length,
                "chains": len(times),
                "first_seconds": round(times[0], 4),
                "median_seconds": round(statistics.median(times), 4),
            }
            for length, times in sorted(groups.items())
        ]


def _table(result: dict[str, Any]) -> Table:
    counts = result["counts"]
    table = Table(
        "up to residues",
        "chains",
        "first s",
        "median s",
        title=f"{counts['scored']} chains in {result['seconds']:.1f} s, of it "
        f"{result['prediction_seconds']:.1f} s in the model",
    )
    for row in result["by_length"]:
        table.add_row(
            str(row["up_to_residues"]),
            str(row["chains"]),
            f"{row['first_seconds']:.3f}",
            f"{row['median_seconds']:.3f}",
        )
    return table
