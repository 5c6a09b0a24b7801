"""Decides when the strategy changes: pure functions from a spec to boundaries in the data.

After "Strategy Switch" and Li et al., "Sync-Switch" (2021): begin synchronously, go on
asynchronously, or the other way round; any number of phases.
"""

from __future__ import annotations

import itertools
import math

from phalanx.core.errors import InputError
from phalanx.core.spec import Spec, Until
from phalanx.policies.sample_assignment import Segment

Boundary = tuple[int, int]  # epoch, position in it


def boundaries(spec: Spec, epochs: int | None, samples: int, batch: int) -> list[Boundary]:
    """The end of each phase but the last, each at the end of a global batch."""
    ends = [_boundary(phase.until, spec, epochs, samples, batch) for phase in spec.phases[:-1]]
    for before, after in itertools.pairwise(ends):
        if before >= after:
            raise InputError(f"the phases of '{spec.text}' end out of order", "Correct the order.")
    return ends


def _boundary(
    until: Until | None, spec: Spec, epochs: int | None, samples: int, batch: int
) -> Boundary:
    assert until is not None  # the grammar gives every phase but the last an end
    if until.epochs is not None:
        if epochs is not None and until.epochs >= epochs:
            raise InputError(
                f"'{spec.text}' switches after epoch {until.epochs}, but there are only {epochs}",
                "Switch earlier, or train longer: --epochs",
            )
        return until.epochs, 0
    if epochs is None:
        raise InputError(
            f"'{spec.text}' switches at a share of the training, whose length is not known",
            "Loop with `for epoch in run.epochs(N)`, or switch after epochs: @2e",
        )
    assert until.share is not None
    at = until.share * epochs * samples
    epoch = int(at // samples)
    position = math.ceil((at - epoch * samples) / batch - 1e-9) * batch
    return (epoch, position) if position < samples else (epoch + 1, 0)


def segments(epoch: int, samples: int, ends: list[Boundary]) -> list[Segment]:
    """The stretches of one epoch, each under one phase."""
    cuts = [position for e, position in ends if e == epoch and position > 0]
    phase = sum(1 for e, position in ends if (e, position) <= (epoch, 0))
    found, start = [], 0
    for end in [*cuts, samples]:
        found.append(Segment(start, end, phase))
        start, phase = end, phase + 1
    return found
