"""Which view of a batch an adopted script gets."""

from __future__ import annotations

from phalanx.core.settings import RunSettings
from phalanx.core.spec import parse_spec

_LOCKSTEP = ("allreduce", "bsp")


def sees_whole_batches(chosen: RunSettings, workers: int) -> bool:
    """Whether each worker runs the script on whole batches, and only calls of models are shared.

    That needs workers that step together all the time, with gradients as they are.
    """
    if workers == 1 or not chosen.adopt or chosen.view == "parts" or chosen.loss is not None:
        return False
    if chosen.virtual is not None or chosen.profile is not None or chosen.explain:
        return False
    phases = parse_spec(chosen.strategy).phases
    return len(phases) == 1 and phases[0].name in _LOCKSTEP and not phases[0].codec
