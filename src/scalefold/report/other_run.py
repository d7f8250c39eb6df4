"""The training of another run beside this one: its curves, and both runs after as many steps."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from scalefold.config.identity import trajectory_settings
from scalefold.report.shapes import RunReport, read_shaped
from scalefold.report.smoothing import numbers, smoothed, smoothing_window

_COMPARED: Final = ("loss", "lddt_ca", "grad_norm", "loss/")


def read_report(path: Path) -> dict[str, Any]:
    """Read the ``report.json`` of another run; raises as `read_shaped`."""
    return read_shaped(path, RunReport, "the report of a training run")


def beside(
    training: Mapping[str, Sequence[Any]],
    config: Mapping[str, Any] | None,
    report: Mapping[str, Any],
) -> dict[str, Any] | None:
    """Compare the training of another run with this one, up to the last step of both.

    Parameters
    ----------
    report : mapping
        Of the other run, see `read_report`.

    Returns
    -------
    dict or None
        ``run``, the other's name; ``training``, its columns; ``step``, the last that both have
        reached; ``rows`` with ``key``, and the running means ``here`` and ``there`` at that step;
        ``settings``, those that the runs do not share, with ``key``, ``here`` and ``there``, or
        None where they are not known. None before this run has logged anything.
    """
    if not training:
        return None
    step = min(training["step"][-1], report["training"]["step"][-1])
    here, there = (_until(step, columns) for columns in (training, report["training"]))
    shared = [key for key in here if key in there and key.startswith(_COMPARED)]
    means = [(key, _last_mean(here[key]), _last_mean(there[key])) for key in shared]
    return {
        "run": report["run"],
        "step": step,
        "rows": [
            {"key": key, "here": ours, "there": theirs}
            for key, ours, theirs in means
            if ours is not None and theirs is not None
        ],
        "settings": _differences(config, report["provenance"]["config"]),
        "training": there,
    }


def _until(step: int, columns: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    count = sum(1 for reached in columns["step"] if reached <= step)
    return {key: list(values[:count]) for key, values in columns.items()}


def _last_mean(values: Sequence[float | None]) -> float | None:
    """Where the running mean of a curve ends."""
    means = smoothed(numbers(values), smoothing_window(len(values)))
    return round(means[-1], 6) if means and math.isfinite(means[-1]) else None


def _differences(
    here: Mapping[str, Any] | None, there: Mapping[str, Any] | None
) -> list[dict[str, Any]] | None:
    """Settings that differ and that a training run depends on, if both versions have them."""
    if here is None or there is None:
        return None
    ours, theirs = trajectory_settings(here), trajectory_settings(there)
    return [
        {"key": key, "here": ours[key], "there": theirs[key]}
        for key in ours
        if key in theirs and ours[key] != theirs[key]
    ]
