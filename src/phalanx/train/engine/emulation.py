"""Emulates slower workers, without root rights, by waiting.

Under real time a worker of speed 0.25 sleeps three times as long as it computed. In scripted time
(threads) real time does not count: a step's time follows from its number of samples, with a little
noise from the seed, so that a run repeats exactly.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from phalanx.core.settings import RunSettings
from phalanx.sync.arena.arena import Arena

if TYPE_CHECKING:
    from phalanx.sync.arena.memory_arena import ThreadArena

SCRIPTED_SECONDS_PER_SAMPLE = 1e-3
SCRIPTED_NOISE = 0.1


@dataclass
class SpeedEmulation:
    """Slows this worker down to ``speed``, a fraction of its real speed."""

    speed: float
    arena: Arena | None
    noise: random.Random

    def work(self, samples: int, seconds: float, *, lockstep: bool = True) -> float:
        """Slow down the computing that took ``seconds``; return the seconds that count."""
        if self.arena is not None and self.arena.scripted:
            return self._script(samples)
        longer = seconds / self.speed - seconds
        (self.arena.sleep if self.arena else time.sleep)(longer)
        return seconds + longer

    def _script(self, samples: int) -> float:
        assert self.arena is not None
        noise = 1.0 + SCRIPTED_NOISE * self.noise.random()
        seconds = max(1, samples) * SCRIPTED_SECONDS_PER_SAMPLE * noise / self.speed
        self.arena.sleep(seconds)
        return seconds


def emulation_of(
    chosen: RunSettings, rank: int, arena: Arena | None, virtual: ThreadArena | None = None
) -> SpeedEmulation | None:
    """Make the emulation of this worker; ``None`` if it runs at its own speed."""
    speeds = chosen.slow or []
    speed = speeds[rank] if rank < len(speeds) else 1.0
    if virtual is not None and chosen.virtual is not None:
        from phalanx.train.engine.virtual_work import VirtualWork

        return VirtualWork(virtual, chosen.virtual, speed, chosen.seed, alone=arena is None)
    if speed == 1.0 and not (arena is not None and arena.scripted):
        return None
    return SpeedEmulation(speed, arena, random.Random(f"{chosen.seed} {rank}"))
