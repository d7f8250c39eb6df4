"""Matplotlib figures as SVG that lives inside an HTML page.

Colours are written as CSS variables, so that figures follow the page into dark mode and print. Text
stays text: it has the page's font, and can be searched and read aloud.
"""

from __future__ import annotations

import html
import re
from io import StringIO
from typing import Any, Final, NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

INK: Final = "#010101"
MUTED: Final = "#010102"
GRID: Final = "#010103"
SERIES: Final = ("#010111", "#010112", "#010113", "#010114")
"""Stand-ins for colours. The CSS variables below replace them."""

_VARIABLES: Final = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    GRID: "var(--line)",
    **{colour: f"var(--series-{i})" for i, colour in enumerate(SERIES, 1)},
}
_STYLE: Any = {
    "svg.fonttype": "none",
    "font.size": 9.5,
    "axes.edgecolor": GRID,
    "axes.labelcolor": MUTED,
    "axes.titlesize": 10.5,
    "axes.titlecolor": INK,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "legend.frameon": False,
    "legend.labelcolor": INK,
    "legend.fontsize": 9,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "path.simplify": True,
    "text.parse_math": False,  # names are taken as they are, also with dollar signs
}


def styled() -> Any:
    """Context in which figures are made and rendered; settings of the process stay as they are."""
    return matplotlib.rc_context(_STYLE)


def new_figure(width: float = 5.6, height: float = 3.1) -> tuple[Figure, Axes]:
    """Make a figure of one pair of axes, inches; not known to pyplot."""
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


class FigureOnPage(NamedTuple):
    """An SVG element and the text below it."""

    svg: str
    caption: str


def on_page(
    figure: Figure, name: str, title: str, description: str, caption: str = ""
) -> FigureOnPage:
    """Render a figure as an ``<svg>`` element.

    Parameters
    ----------
    name : str
        Letters and hyphens, unique in the page: prefix of all ids.
    title, description : str
        What a screen reader says.
    """
    FigureCanvasSVG(figure)
    buffer = StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    # An inline element needs no namespaces; matplotlib's size in points would fix its width.
    view_box = re.search(r'viewBox="[^"]*"', text)
    assert view_box is not None
    labels = f"{name}-title {name}-description"
    opening = (
        f'<svg {view_box[0]} role="img" aria-labelledby="{labels}">'
        f'<title id="{name}-title">{html.escape(title)}</title>'
        f'<desc id="{name}-description">{html.escape(description)}</desc>'
    )
    body = text[text.index(">") + 1 :].replace("xlink:href", "href").strip()
    body = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', body)
    body = re.sub(r'(href="#|url\(#)', rf"\1{name}-", body)
    # Fonts are the page's: only size, weight and anchor of the text remain. Some versions of
    # matplotlib write them apart, some together.
    body = re.sub(r"font: ((?:\d+ )?[\d.]+px) [^;\"]*", _apart, body)
    body = re.sub(r" font-family: [^;\"]*;", "", body)
    # Narrow screens make figures smaller, and set --text to more than 1.
    body = re.sub(r"font-size: ([\d.]+px)", r"font-size: calc(\1 * var(--text, 1))", body)
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, variable)
    return FigureOnPage(opening + body, caption)


def _apart(match: re.Match[str]) -> str:
    *weight, size = match[1].split()
    return f"font-size: {size}" + "".join(f"; font-weight: {w}" for w in weight)
