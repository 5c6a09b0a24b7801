"""Sets the style of all figures, and saves them as SVG or PNG.

Text stays text, and the two neutral colours become CSS variables inside the page, so that one
drawing suits a light and a dark page alike.
"""

from __future__ import annotations

import io
import logging
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from phalanx.core.files import write_whole

INK = "#1b2433"
FAINT = "#d5dae3"
BASE = "#8b95a7"
"""The neutral colour of ``single``, the run that all others are measured against."""
PALETTE = ("#4269d0", "#e8833a", "#3ca951", "#a463f2", "#e0507b", "#2aa7b8", "#9c6b4e", "#b5a300")
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "phalanx",
    # Names are the user's own: a dollar sign in one is a dollar sign, not the start of a formula.
    "text.parse_math": False,
    "text.usetex": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.titleweight": "semibold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": FAINT,
    "grid.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "lines.linewidth": 2.0,
    "lines.solid_capstyle": "round",
    "figure.constrained_layout.use": True,
}


@contextmanager
def house_style() -> Iterator[None]:
    """Every figure is drawn and saved under the same settings."""
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    with matplotlib.rc_context(_STYLE):
        yield


def new_figure(width: float, height: float, **grid: Any) -> tuple[Figure, Any]:
    """A figure and its axes (an array of them when ``grid`` asks for more than one)."""
    figure = Figure(figsize=(width, height))
    return figure, figure.subplots(**grid)


def colours(labels: Sequence[str]) -> dict[str, str]:
    """One colour per label, the same in every figure."""
    others = [label for label in labels if not label.startswith("single")]
    found = {label: PALETTE[i % len(PALETTE)] for i, label in enumerate(others)}
    return {label: found.get(label, BASE) for label in labels}


_LETTER, _MARK, _ROW = 0.075, 0.45, 0.19
"""Inches that a letter, the mark before a name, and a row of a legend take, roughly."""


def legend_columns(labels: Sequence[str], width: float) -> int:
    """How many names fit side by side into ``width`` inches."""
    widest = max((len(label) for label in labels), default=1) * _LETTER + _MARK
    return max(1, min(len(labels), int(width / widest)))


def legend_height(labels: Sequence[str], width: float) -> float:
    """Inches that a legend needs beyond its first row."""
    return _ROW * ((len(labels) - 1) // legend_columns(labels, width))


def legend_above(axes: Axes, columns: int) -> None:
    axes.legend(
        loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns, borderaxespad=0.2,
        columnspacing=1.4,
    )  # fmt: skip


def svg_of(figure: Figure) -> str:
    """The drawing as SVG, with a transparent background."""
    buffer = io.StringIO()
    with house_style():
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
        # The layout is computed once: that takes longer than drawing.
        figure.set_layout_engine("none")
    text = buffer.getvalue()
    # Names of clips come from places whose last digits differ from layout to layout.
    for number, name in enumerate(re.findall(r'<clipPath id="(\w+)"', text)):
        text = text.replace(name, f"clip{number}")
    return text


def inline_svg(text: str, name: str, description: str) -> str:
    """SVG to put into a page: no prolog, no addresses, unique ids, and the page's colours."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
    text = re.sub(r'(<svg[^>]*?) width="[^"]*pt"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?) height="[^"]*pt"', r"\1", text, count=1)
    text = text.replace("xlink:href", "href")
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = text.replace("url(#", f"url(#{name}-").replace('href="#', f'href="#{name}-')
    text = text.replace(INK, "var(--ink)").replace(FAINT, "var(--line)")
    label = description.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return text.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def save_figure(figure: Figure, svg: str, folder: Path, name: str) -> None:
    """``NAME.svg`` and ``NAME.png``, on white."""
    white = '<rect width="100%" height="100%" fill="white"/>'
    paper = re.sub(r"(<svg\b[^>]*>)", rf"\1{white}", svg, count=1)
    write_whole(folder / f"{name}.svg", paper)
    pixels = io.BytesIO()
    with house_style():
        figure.savefig(pixels, format="png", facecolor="white", dpi=144)
    write_whole(folder / f"{name}.png", pixels.getvalue())
