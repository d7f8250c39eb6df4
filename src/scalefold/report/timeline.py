"""When the training ran, when it was interrupted, and which of its steps were evaluated."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from scalefold.report.svg import MUTED, SERIES, FigureOnPage, new_figure, on_page, styled
from scalefold.train.sessions import Session


def timeline(
    sessions: Sequence[Session],
    metrics: Sequence[Mapping[str, Any]],
    evaluations: Sequence[Mapping[str, Any]],
) -> dict[str, Any] | None:
    """Hours since the training began.

    Parameters
    ----------
    metrics : sequence of mapping
        Records with ``step`` and ``time``: when a step was made.

    Returns
    -------
    dict or None
        ``sessions``: ``start``, ``end`` and ``killed`` of each; ``pauses``: ``start`` and ``end``;
        ``evaluated``: ``step``, the hour ``made`` of the step, and the mean ``lddt_ca`` of the
        first split. None without sessions.
    """
    if not sessions:
        return None
    begun = sessions[0].started

    def hour(time: float) -> float:
        return round((time - begun) / 3600, 6)

    made = [(record["step"], record["time"]) for record in metrics if record.get("time")]
    made = [(0, begun), *made]
    steps, times = zip(*made)
    return {
        "sessions": [
            {
                "start": hour(session.started),
                "end": hour(session.ended),
                # A session that goes on has no end either.
                "killed": session.max_rss_mb is None and session is not sessions[-1],
            }
            for session in sessions
        ],
        "pauses": [
            {"start": hour(one.ended), "end": hour(other.started)}
            for one, other in itertools.pairwise(sessions)
        ],
        "evaluated": [
            {
                "step": evaluation["step"],
                "made": hour(float(np.interp(evaluation["step"], steps, times))),
                "lddt_ca": next((mean["lddt_ca"] for mean in evaluation["mean"].values()), None),
            }
            for evaluation in evaluations
        ],
    }


def timeline_figure(content: Mapping[str, Any]) -> FigureOnPage:
    """Bars of the sessions, crosses where one was killed, and marks of the evaluated steps."""
    sessions, pauses, evaluated = (content[key] for key in ("sessions", "pauses", "evaluated"))
    last = max(session["end"] for session in sessions)
    unit, scale = ("hours", 1.0) if last >= 2 else ("minutes", 60.0)
    with styled():
        figure, axes = new_figure(height=2.2)
        for session in sessions:
            width = max(session["end"] - session["start"], last / 500)
            axes.barh(1, scale * width, 0.5, left=scale * session["start"], color=SERIES[0])
            if session["killed"]:
                axes.plot(scale * session["end"], 1, "x", color=SERIES[1], markersize=8)
        for pause in pauses:
            axes.plot(
                [scale * pause["start"], scale * pause["end"]], [1, 1], color=MUTED, ls=":", lw=1.2
            )
        marks = [scale * one["made"] for one in evaluated]
        axes.plot(
            marks, [0] * len(marks), "o", color=SERIES[2], markersize=5, clip_on=False, zorder=3
        )
        axes.set_yticks([0, 1], ["evaluated steps", "training"])
        axes.set_ylim(-0.6, 1.6)
        axes.grid(False, axis="y")
        axes.set(title="Timeline", xlabel=f"{unit} since the start")
        killed = sum(session["killed"] for session in sessions)
        said = f"{len(sessions)} sessions, {killed} of them killed, {len(marks)} evaluated steps."
        caption = "Bars: sessions of training."
        if pauses:
            caption += " Dotted: pauses."
        if killed:
            caption += " Crosses: the session was killed."
        return on_page(figure, "timeline", "Timeline", said, caption)
