"""Loss against epochs and time."""

from __future__ import annotations

from phalanx.report.load import StudyData
from phalanx.report.sections import Plot, Section
from phalanx.report.sections.accuracy import known_measure, went_on


def section(study: StudyData) -> Section | None:
    """Training loss solid, that of unseen data dashed."""
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
