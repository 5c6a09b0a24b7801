"""Numbers as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from phalanx.report.words import UNKNOWN, count, loss, seconds, share

if TYPE_CHECKING:
    from phalanx.observe.summary.summary import Summary


def clock(duration: float | None) -> str:
    """``0:07``, ``12:30``, ``1:02:03``; unknown is a dash."""
    if duration is None:
        return UNKNOWN
    whole = max(0, round(duration))
    minutes, second = divmod(whole, 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"


def describe(summary: Summary) -> str:
    """How a run ended, in one line."""
    parts = [f"{summary.status}: {summary.strategy}"]
    if summary.emulated:
        parts.append(f"emulated ({summary.emulated})")
    if summary.test_accuracy is not None:
        parts.append(f"test accuracy {share(summary.test_accuracy)}")
    elif summary.train_loss is not None:
        parts.append(f"train loss {loss(summary.train_loss)}")
    parts.append(seconds(summary.seconds))
    if summary.samples_per_second is not None:
        parts.append(f"{count(summary.samples_per_second)} samples/s")
    return " · ".join(parts)
