"""What changes while a run trains, in a few lines: batch shares, the strategy,
steps that did not count."""

from __future__ import annotations

from phalanx.core.words import count, seconds
from phalanx.observe.events import event_types as ev
from phalanx.report.findings import shares

MOST_SHARES = 3
MOST_SWITCHES = 6
MOST_REFUSED = 5
_REST = "further {} are in the report"


class ChangeLines:
    """Says each change once, and after the first few only that there are more."""

    def __init__(self) -> None:
        self._shares = self._reverted = self._switches = self._refused = 0
        self._last = ""

    def line(self, event: ev.Event) -> str | None:
        """What to print about ``event``, if anything."""
        if isinstance(event, ev.StepRefused):
            self._refused += 1
            told = f"epoch {event.epoch + 1}, step {event.step} skipped: {event.what} is not finite"
            return _few(told, "skipped steps", self._refused, MOST_REFUSED)
        if isinstance(event, ev.Balanced):
            return self._balanced(event)
        if isinstance(event, ev.SamplesSettled):
            told = (
                f"worker {event.worker} is lost: the others take over {event.back} of its samples"
            )
            if event.lost:
                told += f"; {event.lost} of an incomplete update cannot be trained again"
            return told
        return self._switched(event) if isinstance(event, ev.Switched) else None

    def _balanced(self, event: ev.Balanced) -> str | None:
        if event.refused is not None:
            self._reverted += 1
            told = f"shares {shares(event.refused)} tried and reverted: not clearly faster"
            told += f" ({count(event.rate_after)} samples/s instead of {count(event.rate_before)})"
            return _few(told, "trials of shares", self._reverted, MOST_SHARES)
        told = shares(event.shares)
        if told == self._last:
            return None
        self._last, self._shares = told, self._shares + 1
        return _few(f"shares {told} (by measured speed)", "shares", self._shares, MOST_SHARES)

    def _switched(self, event: ev.Switched) -> str | None:
        self._switches += 1
        told = f"switched from {event.before} to {event.after} at epoch {event.at_epoch:.2f}"
        told += f", pause {seconds(event.pause)}"
        return _few(told, "switches", self._switches, MOST_SWITCHES)


def _few(line: str, kind: str, number: int, most: int) -> str | None:
    if number == most + 1:
        return _REST.format(kind)
    return line if number <= most else None
