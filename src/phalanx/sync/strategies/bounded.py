"""Bounded staleness: asynchronous, but no worker runs far ahead of the slowest.

SSP: Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server"
(2013). DSSP, which chooses the bound at run time: Zhao et al., "Dynamic stale synchronous
parallel distributed training for deep learning" (2019). The rules are in ``phalanx.policies``.
"""

from __future__ import annotations

from phalanx.policies.admission import Dynamic, Rule, Stale
from phalanx.sync.arena.admission_gate import AdmissionGate
from phalanx.sync.state.replica import Masks
from phalanx.sync.strategies.asynchronous import Asynchronous
from phalanx.sync.strategy import StrategyContext, Timing


class Bounded(Asynchronous):
    """Lets each worker train a copy that it takes at the gate, so that its age is known."""

    own_copy = True

    def __init__(
        self,
        context: StrategyContext,
        rule: Rule,
        *,
        lockstep: bool = False,
        overlap: str = "no",
        servers: int | None = None,
    ) -> None:
        super().__init__(context, overlap, servers)
        tag, gone = f"{context.tag}.gate", context.gone
        self._gate = context.gates.shared(
            lambda: AdmissionGate(self._arena, rule, tag, lockstep=lockstep, gone=gone)
        )
        self._gate.parties.append(self)
        self._taken: list[int] = []

    def arrive(self) -> None:
        """Announce a worker before it computes, so that a faster one does not think that it rests.

        After a rest, its copy of the parameters may be of any age, so it takes a new one.
        """
        if self._gate.enter():
            self._pull()

    def exchange(self, weight: float, clip: float | None = None) -> Timing:
        if self._gate.enter():  # it rested with a batch in hand, so its copy may be old
            self._gate.pulled()
        return super().exchange(weight, clip)

    def _push(self, used: Masks | None, timing: Timing) -> None:
        now, asked = self._clock.now, self._clock.now()
        self._gate.before_push()
        timing.wait += now() - asked
        if used is not None:
            self._store.push_buffers(self._buffers, used, self._rate_factor, timing)
        self._gate.pushed()
        pushed = now()
        self._gate.wait()
        timing.wait += now() - pushed
        if self._overlaps:
            return  # the model is computing on its copy, which is renewed between steps
        self._pull(timing)

    def _pull(self, timing: Timing | None = None) -> None:
        """Pull for every optimizer, because the worker's clock counts for all of them."""
        began = self._clock.now()
        for party in self._gate.parties:
            party.take()
        self._gate.pulled()
        if timing is not None:
            timing.reduce += self._clock.now() - began

    def take(self) -> None:
        self._taken = self._store.pull_newer(self._staged, self._taken)

    def refresh(self) -> None:
        super().refresh()
        self._taken = []  # parameters also change without a push: by a checkpoint, or a switch

    def land(self) -> None:
        super()._settle()

    def _settle(self) -> None:
        for party in self._gate.parties:  # in turn, because one clock counts their pushes
            party.land()
        if self._overlaps:
            self._pull()

    def lose(self, rank: int) -> None:
        self._gate.lose(rank)

    def rest(self) -> None:
        super().rest()
        self._gate.rest()


class StaleSynchronous(Bounded):
    def __init__(
        self,
        context: StrategyContext,
        bound: int = 3,
        overlap: str = "no",
        servers: int | None = None,
    ) -> None:
        rule, lockstep = Stale(bound), bound == 0
        super().__init__(context, rule, lockstep=lockstep, overlap=overlap, servers=servers)


class DynamicStaleSynchronous(Bounded):
    def __init__(
        self, context: StrategyContext, low: int = 2, high: int = 8, servers: int | None = None
    ) -> None:
        super().__init__(context, Dynamic(low, high), servers=servers)
