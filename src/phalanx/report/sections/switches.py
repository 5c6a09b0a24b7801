"""When the strategy changed, from what to what, and how long that took."""

from __future__ import annotations

from collections.abc import Iterator

from phalanx.core import words
from phalanx.report.findings import of_group, shown_switches, switch_sentence
from phalanx.report.load import RunGroup, StudyData
from phalanx.report.sections import Grid, Section

HEAD = ("strategy", "switch", "at epoch", "from", "to", "pause")


def section(study: StudyData) -> Section | None:
    """The first and last few of each strategy's typical run; a policy may switch often."""
    groups = [group for group in study.groups if group.shown.summary.switches]
    if not groups:
        return None
    rows = tuple(row for group in groups for row in _rows(group))
    note = "Epochs count from 0: 1.5 is halfway through the second. A pause is from the last "
    note += "worker's arrival to the first new step."
    lines = tuple(of_group(group, study, switch_sentence(group.shown.summary)) for group in groups)
    return Section("Switches", 450, lines=lines, grids=(Grid(HEAD, rows, note),))


def _rows(group: RunGroup) -> Iterator[tuple[str, ...]]:
    switches = group.shown.summary.switches
    shown, hidden = shown_switches(switches)
    for index, switch in enumerate(shown):
        if hidden and index == len(shown) // 2:
            yield (group.label, f"{hidden} more", "", "", "", "")
        number = index + 1 if index < len(shown) / 2 else len(switches) - len(shown) + index + 1
        yield (
            group.label,
            str(number),
            f"{switch.at_epoch:.2f}",
            switch.before,
            switch.after,
            words.seconds(switch.pause_seconds),
        )
