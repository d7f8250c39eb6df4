"""Samples and hours of training, below the steps of an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from scalefold.train.sessions import Session

_FEWEST_HOURS: Final = 2.0
"""Shorter training runs are shown in minutes."""


def hours_trained(times: Sequence[float | None], sessions: Sequence[Session]) -> list[float | None]:
    """Hours of training until each time; pauses between sessions do not count.

    Parameters
    ----------
    times : sequence of (float or None)
        Unix time, seconds.
    sessions : sequence of Session
        Without any, hours since the first time.
    """
    known = [time for time in times if time is not None]
    spans = [(session.started, session.ended) for session in sessions]
    if not spans and known:
        spans = [(min(known), max(known))]
    return [
        None
        if time is None
        else round(sum(max(0.0, min(time, end) - start) for start, end in spans) / 3600, 6)
        for time in times
    ]


def label_steps(axes: Axes, training: Mapping[str, Sequence[Any]]) -> None:
    """Write samples and hours below the steps of an x axis, if they were logged.

    Parameters
    ----------
    training : mapping of str to sequence
        Columns ``step`` and, maybe, ``samples`` and ``hours``.
    """
    rows = {}
    for name in ("samples", "hours"):
        known = [
            (step, value)
            for step, value in zip(training.get("step", ()), training.get(name, ()))
            if value is not None
        ]
        if known:
            rows[name] = np.array([(0.0, 0.0), *known]).T
    if "hours" in rows and rows["hours"][1, -1] < _FEWEST_HOURS:
        rows["minutes"] = rows.pop("hours") * [[1.0], [60.0]]

    def text(step: float, _: int | None = None) -> str:
        lines = [f"{step:,.0f}"]
        for name, (steps, values) in rows.items():
            value = float(np.interp(step, steps, values))
            digits = 0 if name == "samples" or values[-1] > 20 else 1
            lines.append(f"{value:,.{digits}f}" if 0 <= step <= steps[-1] else "")
        return "\n".join(lines)

    axes.set_xlabel(", ".join(["step", *rows]))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    axes.xaxis.set_major_formatter(FuncFormatter(text))
    for label in axes.get_xticklabels():  # narrow screens enlarge the letters, not the lines
        label.set_linespacing(1.4)
