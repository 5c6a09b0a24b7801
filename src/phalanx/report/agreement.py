"""Whether systems trained the same model: times are compared only where losses agree."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from phalanx.core.settings import OURS
from phalanx.report.load import RunGroup
from phalanx.report.quality import Quality

LOSS_BAND = 0.25
"""How far a loss may be from the reference's loss, as a share of the latter."""
ACCURACY_BAND = 0.01
_PARTS = ("test", "validation", "train")


class Agreement(Enum):
    """Whether a row's final losses agree with those of the reference."""

    REFERENCE = "reference"
    AGREES = "agree"
    DIFFERS = "losses differ"
    UNKNOWN = "unknown"

    @property
    def comparable(self) -> bool:
        return self in (Agreement.REFERENCE, Agreement.AGREES)


def are_systems(groups: Sequence[RunGroup]) -> bool:
    """Whether more than one system is compared: strategies of one system need no check."""
    return len({group.system for group in groups}) > 1


def reference_for(group: RunGroup, groups: Sequence[RunGroup]) -> RunGroup | None:
    """Return a finished group: Phalanx's with the same batch, else Phalanx's, else any."""
    done = [other for other in groups if other.done]
    ours = [other for other in done if other.system == OURS]
    same = [other for other in ours if other.batch == group.batch]
    return next(iter([*same, *ours, *done]), None)


def agreements(groups: Sequence[RunGroup]) -> list[Agreement]:
    """Return the agreement of each group; strategies of one system agree by definition."""
    if not are_systems(groups):
        return [Agreement.AGREES] * len(groups)
    return [_judge(group, reference_for(group, groups)) for group in groups]


def _judge(group: RunGroup, reference: RunGroup | None) -> Agreement:
    if reference is None or not group.done:
        return Agreement.UNKNOWN
    if group is reference:
        return Agreement.REFERENCE
    for part in _PARTS:
        near = [
            found
            for measure in ("loss", "accuracy")
            if (found := _near(group, reference, Quality(f"{part}_{measure}"))) is not None
        ]
        if near:
            return Agreement.AGREES if any(near) else Agreement.DIFFERS
    return Agreement.UNKNOWN


def _near(group: RunGroup, reference: RunGroup, quality: Quality) -> bool | None:
    own, other = group.spread(quality.get), reference.spread(quality.get)
    if own is None or other is None:
        return None
    band = ACCURACY_BAND if quality.is_share else LOSS_BAND * abs(other.middle)
    return abs(own.middle - other.middle) <= band


def remarks(groups: Sequence[RunGroup]) -> list[str]:
    """Say which rows are left out of the comparison of times, and why."""
    if not are_systems(groups):
        return []
    told = []
    for group, found in zip(groups, agreements(groups), strict=True):
        reference = reference_for(group, groups)
        if found is Agreement.DIFFERS and reference is not None:
            told.append(f"{group.label}: its losses differ from those of {reference.label}")
        elif found is Agreement.UNKNOWN and group.done:
            told.append(f"{group.label}: it reported no losses")
    return [f"Times not compared: {'; '.join(told)}."] if told else []
