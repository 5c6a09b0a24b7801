"""The map of ``benchmarks.scale`` as SVG: a panel for each model, a cell for each cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from phalanx.report.plots.drawing import BASE, INK, PALETTE

NAMES = {
    "allreduce:topology=ring": ("allreduce, ring", PALETTE[0]),
    "allreduce:topology=butterfly": ("allreduce, butterfly", PALETTE[2]),
    "allreduce:topology=tree": ("allreduce, tree", PALETTE[6]),
    "bsp": ("bsp", PALETTE[5]),
    "localsgd:every=8": ("localsgd, every 8 steps", PALETTE[3]),
    "async": ("async", PALETTE[1]),
    "ssp:bound=3": ("ssp", PALETTE[4]),
    "groups:size=8": ("groups of 8", PALETTE[7]),
    "single": ("one worker alone", BASE),
}
"""What stands in the legend, and its colour."""
TITLE = "Which strategy wins where"
ROWS = (
    ("The fastest with the mathematics of one process", "exact"),
    ("The fastest of all, accuracy unknown", "fastest"),
)
WIDE, HIGH, GAP = 39, 24, 26
"""Pixels of a cell, and between panels."""
LEFT, TOP, BETWEEN = 88, 112, 84
FAINTEST = 0.16


@dataclass(frozen=True)
class Shown:
    """A cell: its place, its winners, and their shares of what the workers could do."""

    workers: int
    parameters: float
    rate: float
    winners: dict[str, tuple[str, float]]
    """By row: the strategy and its share."""


def draw(cells: Sequence[Shown]) -> str:
    """``cells`` fill a grid."""
    models = sorted({cell.parameters for cell in cells})
    workers, rates = (sorted({getattr(cell, n) for cell in cells}) for n in ("workers", "rate"))
    across, down = len(workers) * WIDE, len(rates) * HIGH
    width = LEFT + len(models) * (across + GAP)
    height = TOP + len(ROWS) * (down + BETWEEN) - BETWEEN + 32
    lines = [*_head(width, height), *_legend(cells)]
    for row, (title, key) in enumerate(ROWS):
        y = TOP + row * (down + BETWEEN)
        lines.append(_text(LEFT, y - 28, title, weight=600))
        for column, model in enumerate(models):
            x = LEFT + column * (across + GAP)
            lines.append(_text(x, y - 8, f"{_short(model)} parameters", colour="#555"))
            for cell in (c for c in cells if c.parameters == model):
                place = workers.index(cell.workers), len(rates) - 1 - rates.index(cell.rate)
                lines += _cell(x + place[0] * WIDE, y + place[1] * HIGH, *cell.winners[key])
            for i, count in enumerate(workers):
                middle = x + (i + 0.5) * WIDE
                lines.append(_text(middle, y + down + 15, _short(count), "middle", "#555"))
        for i, rate in enumerate(reversed(rates)):
            unit = " Gbit/s" if i == 0 else ""
            middle = y + (i + 0.5) * HIGH + 4
            lines.append(_text(LEFT - 8, middle, f"{rate:g}{unit}", "end", "#555"))
        lines.append(_text(LEFT - 8, y + down + 15, "workers", "end", "#555"))
    return "\n".join([*lines, "</svg>", ""])


def _head(width: int, height: int) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" role="img" aria-label="{TITLE}"'
        ' font-family="system-ui, sans-serif" font-size="12">'
    )
    yield f"<title>{TITLE}</title>"
    yield f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>'


def _legend(cells: Sequence[Shown]) -> Iterator[str]:
    """The winners, in one line, and what the numbers are."""
    won = {name for cell in cells for name, _ in cell.winners.values()}
    x = LEFT
    for name, (words, colour) in NAMES.items():
        if name in won:
            yield f'<rect x="{x}" y="16" width="12" height="12" rx="2" fill="{colour}"/>'
            yield _text(x + 17, 26, words)
            x += 17 + 7 * len(words) + 20
    what = "Numbers: samples/s, as % of workers that only compute and never wait. Pale is slow."
    yield _text(LEFT, 48, what, colour="#555")


def _cell(x: float, y: float, strategy: str, share: float) -> Iterator[str]:
    mixed = FAINTEST + (1 - FAINTEST) * min(1.0, share)
    place = f'x="{x + 0.5:g}" y="{y + 0.5:g}" width="{WIDE - 1}" height="{HIGH - 1}"'
    yield f'<rect {place} rx="2" fill="#{bytes(_on_white(NAMES[strategy][1], mixed)).hex()}"/>'
    percent = 100 * share
    words = f"{percent:.0f}" if percent >= 0.95 else f"{percent:.1g}"
    red, green, blue = _on_white(NAMES[strategy][1], mixed)
    colour = "#fff" if 0.3 * red + 0.59 * green + 0.11 * blue < 150 else INK
    yield _text(x + WIDE / 2, y + HIGH / 2 + 4, words, "middle", colour)


def _on_white(colour: str, part: float) -> tuple[int, int, int]:
    red, green, blue = (round(255 - (255 - own) * part) for own in bytes.fromhex(colour[1:]))
    return red, green, blue


def _text(
    x: float, y: float, words: str, anchor: str = "", colour: str = INK, weight: int = 0
) -> str:
    more = f' text-anchor="{anchor}"' if anchor else ""
    more += f' font-weight="{weight}"' if weight else ""
    return f'<text x="{x:g}" y="{y:g}"{more} fill="{colour}">{escape(words)}</text>'


def _short(number: float) -> str:
    for size, unit in ((1e9, " B"), (1e6, " M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:g}{unit}"
    return f"{number:g}"
