"""Telling a change of strategy: it is over when the first new step begins."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.spec import Spec
from phalanx.data.ledger import Segment
from phalanx.observe.events import Switched
from phalanx.train.engine import Engine


@dataclass(frozen=True)
class _UnderWay:
    arrived: float
    """When the last worker had done everything of the old phase."""
    point: float
    before: str
    after: str


class Switching:
    def __init__(self, engine: Engine, spec: Spec) -> None:
        self._engine, self._spec = engine, spec
        self._now: _UnderWay | None = None

    def due(self, segment: Segment) -> bool:
        return segment.phase > self._engine.phase

    def enter(self, segment: Segment, epoch: int, samples: int) -> None:
        """Be in the phase of ``segment``. Collective when that is another one."""
        before = self._spec.phases[self._engine.phase].label
        arrived = self._engine.enter(segment.phase)
        if arrived is not None:
            after = self._spec.phases[segment.phase].label
            self._now = _UnderWay(arrived, epoch + segment.start / samples, before, after)

    def over(self, now: float, epoch: int) -> Switched | None:
        """The event to tell, if a switch was under way until ``now``."""
        switch, self._now = self._now, None
        if switch is None:
            return None
        return Switched(
            time=now,
            rank=self._engine.rank,
            epoch=epoch,
            at_epoch=switch.point,
            before=switch.before,
            after=switch.after,
            pause=now - switch.arrived,
        )
