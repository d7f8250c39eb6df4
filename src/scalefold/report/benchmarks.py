"""Time and memory of the workflow's jobs, as Snakemake measured them."""

from __future__ import annotations

import csv
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_SECONDS_TO_BE_MEASURED: Final = 1.0
"""Snakemake measures a job's memory at its start, when only the shell runs, then twice a second.
For shorter jobs that is the memory of the shell, or of a program that is still being loaded."""


@dataclass(frozen=True)
class Benchmark:
    """Resources of one job.

    Attributes
    ----------
    max_rss_mb : float or None
        Largest resident memory; None where it was not measured, or the job was too short for it.
    """

    rule: str
    seconds: float
    max_rss_mb: float | None


def read_benchmarks(folder: Path, others: set[str], notes: list[str]) -> list[Benchmark]:
    """Read all jobs but those of other training runs, which have their key in the path."""
    found = []
    for path in sorted(folder.rglob("*.tsv")):
        rule, *rest = path.relative_to(folder).with_suffix("").parts
        if others.intersection(rest):
            continue
        try:
            with path.open(encoding="utf-8", newline="") as stream:
                for row in csv.DictReader(stream, delimiter="\t"):
                    seconds, max_rss_mb = float(row["s"]), _float_or_none(row.get("max_rss"))
                    if not 0.0 <= seconds < 1e12:
                        raise ValueError(seconds)
                    measured = seconds >= _SECONDS_TO_BE_MEASURED
                    found.append(Benchmark(rule, seconds, max_rss_mb if measured else None))
        except (ValueError, KeyError, TypeError, IsADirectoryError, csv.Error):
            name = path.relative_to(folder.parent).as_posix()
            notes.append(f"{name}: left out, not a benchmark table of Snakemake.")
    return found


def _float_or_none(text: str | None) -> float | None:
    try:
        number = float(text or "")
        return number if math.isfinite(number) else None
    except ValueError:
        return None  # "-" or "NA": the job was too short to be measured
