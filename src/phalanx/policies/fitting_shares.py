"""Divides a batch so that all workers are done at the same moment."""

from __future__ import annotations

from collections.abc import Sequence

_HALVINGS = 60
_LEAST = 1e-12


def fitting_shares(costs: Sequence[tuple[float, float]], batch: float) -> list[float]:
    """The samples of each worker, from the (fixed, per sample) seconds of its steps.

    They sum to ``batch``; a worker that would be late even with nothing to do gets nothing.
    """
    low = min(fixed for fixed, _ in costs)
    high = max(fixed for fixed, _ in costs) + batch * max(max(each, _LEAST) for _, each in costs)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if sum(_done_by(middle, costs)) >= batch else (middle, high)
    done = _done_by(high, costs)
    whole = sum(done)
    return (
        [batch * part / whole for part in done]
        if whole > 0.0
        else [batch / len(costs)] * len(costs)
    )


def _done_by(seconds: float, costs: Sequence[tuple[float, float]]) -> list[float]:
    return [max(0.0, seconds - fixed) / max(each, _LEAST) for fixed, each in costs]
