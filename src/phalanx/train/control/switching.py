"""Telling a change of strategy: it is over when the first new step begins."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.core.spec import Phase, Spec
from phalanx.observe.events.event_types import Switched
from phalanx.train.loop.engine import Engine


@dataclass(frozen=True)
class _UnderWay:
    arrived: float
    """When the last worker had done everything of the old phase."""
    point: float
    before: str
    after: str


class Switching:
    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._now: _UnderWay | None = None

    def enter(self, phase: Phase, spec: Spec, point: float, *, regroup: bool) -> None:
        """Be in ``phase``. Collective when that is another one."""
        before = self._engine.phase
        arrived = self._engine.enter(phase, spec, regroup=regroup)
        if arrived is not None and before != self._engine.phase:  # regrouping is no switch
            self._now = _UnderWay(arrived, point, before, self._engine.phase)

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
