"""The results of runs and how to repeat them: table, accuracy, loss, and all they depend on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from phalanx.core import words
from phalanx.report.findings import nonfinite_sentence, of_group
from phalanx.report.load import StudyData
from phalanx.report.sections import Grid, Plot, Section, narrow
from phalanx.report.tables import TableCell, table_lines


def results(study: StudyData) -> Section | None:
    """Show a row per strategy; the best is marked if the difference is more than noise."""
    # The kind of emulation is at the top of the page, unless there are several.
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
    return Section(
        "Results", 100, lead=" ".join(line for line in told if line), grids=(narrow(grid),)
    )


def accuracy(study: StudyData) -> Section | None:
    """Show the curves of the accuracy twice: by epoch, and by time."""
    measure = known_measure(study, ("test_accuracy", "validation_accuracy", "train_accuracy"))
    if measure is None:
        return None
    from phalanx.report.plots.figures import curves

    name = measure.replace("_", " ").capitalize()
    by_epoch = curves(study, "epoch", [measure], shares=True, x_label="epoch")
    by_time = curves(
        study, "seconds", [measure], shares=True, x_label="seconds since training began"
    )
    return Section(
        name,
        200,
        plots=(
            Plot("accuracy-by-epoch",
                 f"Per epoch: after each pass over the data.{went_on(study)}", by_epoch),
            Plot("accuracy-by-time", "Per second: the curve that reaches a height further left "
            "was faster, however many epochs it took.", by_time),
        ),
    )  # fmt: skip


def went_on(study: StudyData) -> str:
    """Say how to read the curve of a resumed run."""
    rows = [row for group in study.groups for row in group.shown.summary.history]
    if not any(row.get("earlier") for row in rows):
        return ""
    return " Left of the dotted line: the run that this one continues."


def known_measure(study: StudyData, names: tuple[str, ...]) -> str | None:
    """Return the first of ``names`` that any epoch of any run has."""
    for name in names:
        if any(row.get(name) is not None for run in study.runs for row in run.summary.history):
            return name
    return None


def loss(study: StudyData) -> Section | None:
    """Show the curves of the loss: of training solid, of unseen data dashed."""
    train = known_measure(study, ("train_loss",))
    unseen = known_measure(study, ("test_loss", "validation_loss"))
    measures = [name for name in (train, unseen) if name]
    if not measures:
        return None
    from phalanx.report.plots.figures import curves

    told = " (solid), ".join(name.replace("_", " ") for name in measures)
    told += " (dashed)" if len(measures) > 1 else ""
    by_epoch = curves(study, "epoch", measures, shares=False, x_label="epoch")
    by_time = curves(
        study, "seconds", measures, shares=False, x_label="seconds since training began"
    )
    end = "A dashed line that rises while the solid one falls shows over-fitting."
    caption = f"Per epoch: {told}. {end if unseen else ''}".strip() + went_on(study)
    return Section(
        "Loss",
        300,
        plots=(
            Plot("loss-by-epoch", caption, by_epoch),
            Plot("loss-by-time", f"Per second: {told}.", by_time),
        ),
    )


def rerun(study: StudyData) -> Section | None:
    """Show the exact command, and everything that the numbers depend on."""
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
    # What runs resumed from, and their last checkpoints.
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
