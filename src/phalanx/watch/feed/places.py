"""Where moments of a run lie on the other axes of its charts: steps and epochs.

Every chart is cut by time. Its points are then put at the step, or the epoch, that the run had
reached at that time, so all its workers share one axis.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from phalanx.observe.rollups.rows import RowColumn, Rows
from phalanx.observe.rollups.step_lines import StepsTold

Numbers = NDArray[np.float64]


class Knots:
    """A line that never falls, from times to places."""

    def __init__(self, times: Numbers, places: Numbers) -> None:
        self.times = times
        self.reached = np.maximum.accumulate(places)

    def places(self, times: Numbers) -> Numbers:
        return np.interp(times, self.times, self.reached)

    def time(self, place: float) -> float:
        """Return when the run came to ``place``."""
        rises = np.append(True, np.diff(self.reached) > 0)
        return float(np.interp(place, self.reached[rises], self.times[rises]))


def step_knots(parts: Sequence[Rows]) -> Knots:
    """Return how many steps the worker had done that had done most."""
    lines = [_steps_of(rows) for rows in parts if len(rows)] or [(np.zeros(1), np.zeros(1))]
    times = np.unique(np.concatenate([line[0] for line in lines]))
    return Knots(times, np.max([np.interp(times, *line) for line in lines], axis=0))


def _steps_of(rows: Rows) -> tuple[Numbers, Numbers]:
    times = np.column_stack([rows[:, RowColumn.BEGAN], rows[:, RowColumn.ENDED]]).ravel()
    after = rows[:, RowColumn.NUMBER]
    places = np.column_stack([after - rows[:, RowColumn.STEPS], after]).ravel()
    return np.maximum.accumulate(times), places


def epoch_knots(steps: Knots, parts: Sequence[Rows], told: Sequence[StepsTold]) -> Knots:
    """Turn steps into epochs: whole when an epoch ends, in between by its steps.

    ``parts``: the rows of the whole run.
    """
    turns = sorted(turn for one in told for turn in one.turns)
    if not turns:
        return steps
    epochs, firsts = np.unique([epoch for epoch, _ in turns], return_index=True)
    whole = step_knots(parts)
    begins = whole.places(np.array(turns)[firsts, 1])
    done = float(whole.reached[-1])
    share = 1.0
    if all(one.epoch_done < epochs[-1] for one in told):
        # What a whole epoch takes is known from the samples that all steps had.
        trained = sum(float(rows[:, RowColumn.SAMPLES].sum()) for rows in parts)
        whole_epoch = done * max(one.samples for one in told) / max(trained, 1.0)
        share = min(1.0, (done - float(begins[-1])) / whole_epoch) if whole_epoch else 1.0
    begins, epochs = np.append(begins, done), np.append(epochs, epochs[-1] + share)
    return Knots(steps.times, np.interp(steps.reached, begins, epochs))
