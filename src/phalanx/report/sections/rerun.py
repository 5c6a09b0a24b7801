"""What it takes to do this again: command, versions, seeds, data."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from phalanx.core import words
from phalanx.report.load import StudyData
from phalanx.report.sections import Section


def section(study: StudyData) -> Section | None:
    """The exact command, and everything that the numbers depend on."""
    return Section("To run it again", 900, facts=tuple(_facts(study)))


def _facts(study: StudyData) -> Iterator[tuple[str, str]]:
    summaries = [run.summary for run in study.runs]
    if study.command:
        yield "command", shlex.join(study.command)
    if study.script:
        yield "script", study.script
    versions = {name: text for s in summaries for name, text in s.versions.items()}
    if versions:
        yield "versions", ", ".join(f"{name} {text}" for name, text in sorted(versions.items()))
    seeds = sorted({s.seed for s in summaries if s.seed is not None})
    if seeds:
        yield "seeds", ", ".join(map(str, seeds))
    precisions = sorted({s.precision for s in summaries if s.precision})
    if precisions:
        yield "precision", ", ".join(precisions)
    parameters = sorted({s.parameters for s in summaries if s.parameters})
    if parameters:
        yield "parameters", ", ".join(words.count(number) for number in parameters)
    # Where runs come from, and what they left to go on from.
    for run in study.runs:
        s = run.summary
        name = f", {s.run}" if len(study.runs) > 1 else ""
        if s.resumes:
            yield f"resumed from{name}", s.resumes
        if s.checkpoint:
            last = f"the last {s.checkpoint.path}, in epoch {s.checkpoint.epoch + 1}"
            yield f"checkpoints{name}", f"{s.checkpoints} taken, {last}"
    yield from _data(study)
    for group in study.groups:
        if notes := group.shown.summary.notes:
            yield f"notes, {group.label}", "\n".join(notes)
    if study.runs:
        yield "runs", "\n".join(run.paths.id for run in study.runs)


def _data(study: StudyData) -> Iterator[tuple[str, str]]:
    seen = {d.name: d for run in study.runs for d in run.summary.data}
    for name, data in sorted(seen.items()):
        sums = [f"{file}  {checksum}" for file, checksum in sorted(data.checksums.items())]
        yield f"data, {name}", "\n".join([f"{words.count(data.samples)} samples", *sums])
