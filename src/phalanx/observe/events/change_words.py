"""Changes during a run in words: shares, switches, skipped steps, lost workers."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.core.words import count, seconds
from phalanx.observe.events import event_types as ev


def shares(values: Sequence[float]) -> str:
    """Return ``80 : 20``, in percent; a share that would round to 0 has a decimal."""
    return " : ".join(f"{100 * v:.0f}" if v >= 0.0095 else f"{100 * v:.1f}" for v in values)


def words_on(event: ev.Event) -> str | None:
    """Say what ``event`` changed, if it changed anything."""
    match event:
        case ev.StepRefused():
            return f"epoch {event.epoch + 1}, step {event.step} skipped: {event.what} is not finite"
        case ev.Balanced(refused=None):
            return f"shares {shares(event.shares)} (by measured speed)"
        case ev.Balanced():
            told = f"shares {shares(event.refused or [])} tried and reverted: not clearly faster"
            rates = f"{count(event.rate_after)} samples/s instead of {count(event.rate_before)}"
            return f"{told} ({rates})"
        case ev.WorkerLost():
            return f"worker {event.rank} goes on without worker {event.worker} on {event.machine}"
        case ev.SamplesSettled():
            return _settled(event)
        case ev.Switched():
            told = f"switched from {event.before} to {event.after} at epoch {event.at_epoch:.2f}"
            return f"{told}, pause {seconds(event.pause)}"
    return None


def _settled(event: ev.SamplesSettled) -> str:
    told = f"worker {event.worker} is lost: the others take over {event.back} of its samples"
    if event.lost:
        told += f"; {event.lost} of an incomplete update cannot be trained again"
    return told


class LossOnce:
    """Tells the first report of each loss from the others; one that is cut off loses all others."""

    def __init__(self) -> None:
        self._lost: set[int] = set()

    def is_new(self, event: ev.WorkerLost) -> bool:
        if event.worker in self._lost or event.rank in self._lost:
            return False
        self._lost.add(event.worker)
        return True
