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
    """Show the curves of the accuracy, of training and of other data."""
    further = "a curve that reaches a height further left was faster, in however many epochs."
    return _curves_of(study, "accuracy", 200, by_time=further)


def loss(study: StudyData) -> Section | None:
    """Show the curves of the loss: of training solid, of unseen data dashed."""
    end = "A dashed line that rises while the solid one falls shows over-fitting."
    return _curves_of(study, "loss", 300, both=end)


def _curves_of(
    study: StudyData, kind: str, place: int, *, both: str = "", by_time: str = ""
) -> Section | None:
    """Draw ``kind`` per epoch and per second; ``both``: how to read two curves of one run."""
    train = known_measure(study, (f"train_{kind}",))
    unseen = known_measure(study, (f"test_{kind}", f"validation_{kind}"))
    measures = [name for name in (train, unseen) if name]
    if not measures:
        return None
    from phalanx.report.plots.figures import curves

    told = " (solid), ".join(name.replace("_", " ") for name in measures)
    told += " (dashed)" if len(measures) > 1 else ""
    shares, x_label = kind == "accuracy", "seconds since training began"
    by_epoch = curves(study, "epoch", measures, shares=shares, x_label="epoch")
    in_time = curves(study, "seconds", measures, shares=shares, x_label=x_label)
    caption = f"Per epoch: {told}. {both if unseen else ''}".strip() + went_on(study)
    return Section(
        kind.capitalize(),
        place,
        plots=(
            Plot(f"{kind}-by-epoch", caption, by_epoch),
            Plot(f"{kind}-by-time", f"Per second: {by_time or told + '.'}", in_time),
        ),
    )


def steps(study: StudyData) -> Section | None:
    """Show the learning rate, unless it is the same throughout, and the gradients' norm."""
    from phalanx.report.plots.figures import curves

    shown = {
        "rate": "The learning rate at the start of each epoch; TensorFlow's own: at its end.",
        "gradient_norm": "The gradients' norm before they were clipped, on average over an epoch.",
    }
    plots = tuple(
        Plot(f"{name}-by-epoch".replace("_", "-"), caption + went_on(study),
             curves(study, "epoch", [name], shares=False, x_label="epoch"))
        for name, caption in shown.items()
        if len({r.get(name) for run in study.runs for r in run.summary.history} - {None}) > 1
    )  # fmt: skip
    return Section("Learning rate and gradients", 350, plots=plots) if plots else None


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
