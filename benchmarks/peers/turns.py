"""A process that computes only when it is told to: ``go N`` on stdin, seconds on stdout.

Nothing but the standard library, because processes of every system use it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

MARK = "@bench"
"""Begins the lines that are for the benchmark; a library may print what it likes."""
STEPS, BATCH, FEATURES, CLASSES = 300, 128, 784, 10
"""The most steps of a block, the global batch, and one sample."""


def say(*words: object) -> None:
    print(MARK, *words, flush=True)


def take_turns(block: Callable[[int], float]) -> None:
    """``block(N)`` makes N steps and returns seconds; until stdin ends or says so."""
    say("ready")
    while line := sys.stdin.readline():
        words = line.split()
        if words[:1] == ["go"]:
            say("took", repr(block(int(words[1]))))
        elif words[:1] == ["end"]:
            return


def make_data(share: int = 1, samples: int = STEPS * BATCH) -> tuple[Any, Any]:
    """Images and labels of fixed seed, of one of ``share`` equal workers, as numpy arrays."""
    import numpy

    numbers = numpy.random.default_rng(0)
    count = samples // share
    x = numbers.standard_normal((count, FEATURES), dtype=numpy.float32)
    return x, numbers.integers(0, CLASSES, count)
