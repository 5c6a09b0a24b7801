"""Batch shares that follow the measured speeds, and policies that watch them."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.core.spec import Phase, Spec
from phalanx.sync.balance import Balancer, Meter
from phalanx.sync.straggler_policy import StragglerPolicy
from phalanx.train.board import Command, Kind

LOOK_EVERY = 4  # steps, at least, between observations of the policies
LOOK_SECONDS = 0.1
KNOWN_AFTER = 8  # steps of the slowest worker that by=speed waits for
WINDOW = 20  # steps that a speed is the median of
TICK_SECONDS = 0.02
"""Shorter steps are looked at together: their noise is no reason to change anybody's share."""


class Watch:
    """What one worker makes of everybody's speeds. All see the same, so all decide the same."""

    def __init__(self, workers: int, *, balance: bool) -> None:
        self.meter = Meter(WINDOW)
        self.batch = 1
        """The global batch: what it takes all workers together is the time that passes."""
        self.shares = [1.0 / workers] * workers
        self._workers, self._wanted = workers, balance
        self._balancer = Balancer(workers)
        self._balances = self._regroups = False
        self._policy: StragglerPolicy | None = None
        self._spec = ""
        self._looks, self._passed = 0, 0.0
        self._steps, self._next_look, self._looked = 0, LOOK_EVERY, 0.0

    def enter(self, phase: Phase, spec: Spec, grouped_by_speed: bool) -> None:
        """A phase begins."""
        self._mind_stragglers(phase, spec)
        self._share_anew(phase)
        self._regroups, self._looks, self._passed = grouped_by_speed, 0, 0.0
        self._steps, self._next_look = 0, LOOK_EVERY

    def follow(self, phase: Phase, spec: Spec) -> None:
        """The phase goes on, perhaps under another spec."""
        another = spec.text != self._spec
        self._mind_stragglers(phase, spec)
        if another:
            self._share_anew(phase)

    def _mind_stragglers(self, phase: Phase, spec: Spec) -> None:
        self._spec = spec.text
        if not spec.on_straggler:
            self._policy = None
        elif self._policy is None:
            self._policy = StragglerPolicy(self._workers)
        if self._policy is not None:  # its last verdict may have been lost to another command
            self._policy.away = phase.label != spec.phases[0].label

    def _share_anew(self, phase: Phase) -> None:
        """A straggler that a policy avoids is not balanced away as well."""
        self._balances = self._wanted and phase.traits.balanced and self._policy is None
        if not self._balances:
            self.shares = [1.0 / self._workers] * self._workers
        self._balancer = Balancer(self._workers, self.shares)

    def new_shares(self, speeds: Sequence[float], steps: int = 1) -> bool:
        """Whether the shares have changed; ``steps`` have passed since this was asked."""
        if not self._balances:
            return False
        self._passed += steps * self.batch / (sum(speeds) or 1.0)
        if self._passed < TICK_SECONDS:
            return False
        # Told by the speeds and not by a clock, so that all agree on when to look.
        self._looks += max(1, min(steps, int(self._passed / TICK_SECONDS)))
        self._passed = 0.0
        found = self._balancer.observe(self._looks, speeds)
        if found is not None:
            self.shares = found
        return found is not None

    def verdict(self, speeds: Sequence[float], now: float) -> Command | None:
        """What the policies want, asked once a step."""
        self._steps += 1
        if self._steps < self._next_look or now - self._looked < LOOK_SECONDS:
            return None
        self._looked, self._next_look = now, self._steps + LOOK_EVERY
        if self._regroups and all(speed > 0.0 for speed in speeds) and self._steps >= KNOWN_AFTER:
            self._regroups = False
            return Command(Kind.REGROUP)
        if self._policy is not None:
            verdict = self._policy.observe(speeds, now)
            if verdict is not None:
                return Command(Kind.LEAVE if verdict == "leave" else Kind.RETURN)
        return None
