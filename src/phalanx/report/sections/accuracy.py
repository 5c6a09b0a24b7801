"""Accuracy against epochs and against time."""

from __future__ import annotations

from phalanx.report.load import StudyData
from phalanx.report.sections import Plot, Section


def section(study: StudyData) -> Section | None:
    """The same curves twice: what an epoch teaches, and what a second does."""
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
    """How to read the curve of a resumed run."""
    rows = [row for group in study.groups for row in group.shown.summary.history]
    if not any(row.get("earlier") for row in rows):
        return ""
    return " Left of the dotted line: the run that this one continues."


def known_measure(study: StudyData, names: tuple[str, ...]) -> str | None:
    """The first of ``names`` that any epoch of any run knows."""
    for name in names:
        if any(row.get(name) is not None for run in study.runs for row in run.summary.history):
            return name
    return None
