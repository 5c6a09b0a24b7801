"""The table."""

from __future__ import annotations

from phalanx.report.findings import nonfinite_sentence, of_group
from phalanx.report.load import StudyData
from phalanx.report.sections import Grid, Section
from phalanx.report.tables import TableCell, table_lines


def section(study: StudyData) -> Section | None:
    """One row per strategy, the best marked where the difference is more than noise."""
    # The kind of emulation stands above the page, unless there are several.
    several_kinds = len({group.emulated for group in study.groups if group.emulated}) > 1
    lines = [
        line
        for line in table_lines(study)
        if line.name not in ("emulated", "simulated") or several_kinds
    ]
    if not lines:
        return None
    rows: tuple[tuple[str | TableCell, ...], ...] = tuple(
        (group.label, *(line.cells[i] for line in lines)) for i, group in enumerate(study.groups)
    )
    several = len(study.groups) > 1
    note = (
        "Green: the best, and what differs from it only by noise. " if several else ""
    ) + "Training time is the slowest worker's; elapsed adds starting, reading and evaluating."
    if study.repeats > 1:
        note += " Figures are medians, with the range of the repeats below them."
    head = ("strategy", *(line.name.replace("÷ ", "÷\u00a0") for line in lines))
    grid = Grid(head, rows, note)
    told = (of_group(g, study, nonfinite_sentence(g.shown.summary)) for g in study.groups)
    return Section("Results", 100, lead=" ".join(line for line in told if line), grids=(grid,))
