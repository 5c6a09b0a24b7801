"""Workers of a cluster that is not there live in one process: whether they fit into its memory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from phalanx.core import words
from phalanx.core.errors import InputError

COPIES = 5
"""Of a worker's parameters, at most: its own, its gradient, what it shows or pushes, a buffer for
the sum, and what it pulls. Activations are those of one worker: only one computes at a time."""


def replicas_memory(models: Sequence[nn.Module], workers: int) -> int:
    """Bytes that ``workers`` take, at most, refused if this machine does not have them."""
    values = [
        *(p for m in models for p in m.parameters()),
        *(b for m in models for b in m.buffers()),
    ]
    one = COPIES * sum(value.numel() * value.itemsize for value in values)
    free = available()
    if free is not None and one * workers > free:
        raise InputError(
            f"{workers} workers of this model take {words.size(one * workers)} of memory, and "
            f"{words.size(free)} are free here",
            f"Simulate at most {max(1, free // max(1, one))} workers, or add --time-only.",
        )
    return one * workers


def available() -> int | None:
    """Bytes that this machine could give now, if it says so."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    except (OSError, StopIteration, ValueError):
        return None
