"""The HTML page: one file with everything in it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Final

import jinja2
import yaml
from markupsafe import Markup
from rich.filesize import decimal

from scalefold.progress import duration_in_words
from scalefold.report.chain_figures import chain_figures
from scalefold.report.content import Content
from scalefold.report.data_set import data_figures
from scalefold.report.figures import (
    FEWEST_SMOOTHED,
    calibration_figure,
    curve_title,
    lddt_figure,
    scores_figure,
    training_figures,
)
from scalefold.report.ladder import ladder_figure
from scalefold.report.structure_figures import Drawn, drawn
from scalefold.report.structures import structures, viewer_data, viewer_library
from scalefold.report.timeline import timeline_figure

_MOST_LISTED: Final = 100
"""Chains that are set aside, and reasons for it: a large data set has many thousands."""


def render_page(content: Content, evaluations: Sequence[Mapping[str, Any]]) -> str:
    """Render the report.

    Parameters
    ----------
    evaluations : sequence of mapping
        With their chains, for the curves of single chains.
    """
    config = content["provenance"]["config"]
    kept = structures(evaluations[-1]) if evaluations else []
    training = content["training"]
    splits = list(content["summary"]["lddt_ca"])
    return render(
        "report.html.j2",
        [drawn(one, number) for number, one in enumerate(kept)],
        **content,
        training_figures=training_figures(training, content["beside"]),
        are_smoothed=len(training.get("step", ())) >= FEWEST_SMOOTHED,
        lddt_figure=lddt_figure(evaluations, splits, training, content["summary"]["target_lddt"]),
        scores_figure=scores_figure(evaluations, splits[0], training) if splits else None,
        chain_figures=chain_figures(evaluations[-1]["chains"], splits) if evaluations else [],
        data_figures=data_figures(content["data"]),
        timeline_figure=content["timeline"] and timeline_figure(content["timeline"]),
        calibration_figure=calibration_figure(content["calibration"]),
        ladder_figure=content["ladder"] and ladder_figure(content["ladder"]),
        config_text=None if config is None else yaml.safe_dump(config, sort_keys=False),
        most_listed=_MOST_LISTED,
        longest_stage=max((row["seconds"] for row in content["timings"]), default=0.0) or 1.0,
    )


def render(template: str, shown: Sequence[Drawn], **content: Any) -> str:
    """Render a page.

    Parameters
    ----------
    template : str
        Extends ``layout.html.j2``.
    """
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("scalefold.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=_number,
        size=_size,
        duration=_duration,
        moment=_moment,
        percent=_percent,
        curve_title=curve_title,
    )
    return environment.get_template(template).render(
        **content,
        shown=shown,
        viewer_data=Markup(viewer_data([one.structure for one in shown])),
        viewer_library=Markup(viewer_library()) if shown else None,
    )


def _number(value: float | None, digits: int = 3, signed: bool = False) -> str:
    if value is None:
        return "–"
    text = f"{value:+.{digits}f}" if signed else f"{value:,.{digits}f}"
    return text.replace("-", "−")


def _percent(value: float) -> str:
    return f"{100 * min(1.0, max(0.0, value)):.1f}%"


def _size(num_bytes: float | None) -> str:
    return "–" if num_bytes is None else decimal(round(num_bytes))


def _duration(seconds: float | None) -> str:
    return "–" if seconds is None else duration_in_words(seconds)


def _moment(timestamp: float | None) -> str:
    if timestamp is None:
        return "–"
    moment = datetime.datetime.fromtimestamp(timestamp, datetime.UTC)
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")
