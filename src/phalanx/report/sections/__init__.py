"""The sections of a report: each is one function, which is registered here.

A section is ``(study) -> Section | None``; ``None`` leaves it out. Sections are shown by their
``place``, so that plugins can add one anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from phalanx.core.registry import Registry
from phalanx.report.load import StudyData
from phalanx.report.tables import TableCell

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPORT_SECTIONS = Registry(
    "report section",
    {
        "results": "phalanx.report.sections.outcome:results",
        "accuracy": "phalanx.report.sections.outcome:accuracy",
        "loss": "phalanx.report.sections.outcome:loss",
        "time": "phalanx.report.sections.course:phases",
        "switches": "phalanx.report.sections.course:switches",
        "timeline": "phalanx.report.sections.course:timeline",
        "staleness": "phalanx.report.sections.course:staleness",
        "workers": "phalanx.report.sections.machines:workers",
        "machines": "phalanx.report.sections.machines:machines",
        "rerun": "phalanx.report.sections.outcome:rerun",
    },
)


@dataclass(frozen=True)
class Plot:
    """A figure, and how to read it."""

    name: str
    """The name of the figure and of its files."""
    caption: str
    figure: Figure
    wide: bool = False


@dataclass(frozen=True)
class Grid:
    """A table. A row begins with its name; its cells are text or :class:`TableCell`."""

    head: tuple[str, ...]
    rows: tuple[tuple[str | TableCell, ...], ...]
    note: str = ""


def narrow(grid: Grid) -> Grid:
    """Return the table with rows for columns, if that makes it narrower."""
    if len(grid.head) <= len(grid.rows) + 1:
        return grid
    cells = [grid.head, *grid.rows]
    head, *rows = [tuple(row[place] for row in cells) for place in range(len(grid.head))]
    return Grid(tuple(map(str, head)), tuple(rows), grid.note)


@dataclass(frozen=True)
class Section:
    title: str
    place: int = 500
    lead: str = ""
    plots: tuple[Plot, ...] = ()
    grids: tuple[Grid, ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    """Pairs of a term and its text, which is shown unchanged."""
    lines: tuple[str, ...] = field(default=())
    files: tuple[tuple[str, str], ...] = ()
    """Names and texts of files that are written beside the figures."""


def make_sections(study: StudyData) -> list[Section]:
    """Return every registered section that applies to ``study``, in order."""
    made = [REPORT_SECTIONS.get(name)(study) for name in REPORT_SECTIONS.names()]
    found: list[Section] = [section for section in made if section is not None]
    return sorted(found, key=lambda section: section.place)
