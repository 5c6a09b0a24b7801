"""Adapts batch shares to measured speeds, and asks the policy against stragglers."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from phalanx.core.spec import Phase, Spec
from phalanx.policies.balance import Balancer, ShareChange
from phalanx.policies.share_proposal import Tick
from phalanx.policies.straggler_policy import StragglerPolicy
from phalanx.train.control.directives import Directive, Kind
from phalanx.train.control.rendezvous import BUSY, SAMPLES, STEPS, WHOLE

LOOK_EVERY = 4  # least steps between two observations of the policies
LOOK_SECONDS = 0.1
KNOWN_AFTER = 8  # steps of the slowest worker for which by=speed waits
WINDOW = 20  # steps whose median is a worker's speed
TICK_SECONDS = 0.02
"""Shorter steps are observed together, because noise in them is no reason to change a share."""
FREE_SETTLING = 3
"""Ticks until new shares have an effect on free-running workers, which may be steps apart."""


class SpeedWatch:
    """One worker's view of all speeds. All workers see the same, so all decide the same."""

    def __init__(self, workers: int, *, balance: bool) -> None:
        self.rates: deque[float] = deque(maxlen=WINDOW)
        """Samples per second of this worker's last steps."""
        self.shares = [1.0 / workers] * workers
        self.decided: list[ShareChange] = []
        """Changes of shares that were decided but not announced yet."""
        self._workers, self._wanted = workers, balance
        self._balancer = Balancer(workers)
        self.balances = self.regroups = False
        """Whether shares follow speeds now, and whether groups are to be formed by speed."""
        self.policy: StragglerPolicy | None = None
        self._spec = ""
        self._since: Any = None
        self.next_tick = -math.inf
        """The value of the first worker's ``WHOLE`` at which shares are next looked at. All workers
        agree on it, as it is not read from a clock."""
        self._steps, self._next_look, self._looked, self._every = 0, LOOK_EVERY, 0.0, 1

    def enter(self, phase: Phase, spec: Spec, grouped_by_speed: bool, every: int = 1) -> None:
        """Begin a phase in which all workers meet after ``every`` steps."""
        self._every = max(1, every)
        self._mind_stragglers(phase, spec)
        self._share_anew(phase)
        self.regroups = grouped_by_speed
        self._steps, self._next_look = 0, LOOK_EVERY

    def follow(self, phase: Phase, spec: Spec) -> None:
        """Continue the phase, perhaps under another spec."""
        another = spec.text != self._spec
        self._mind_stragglers(phase, spec)
        if another:
            self._share_anew(phase)

    def _mind_stragglers(self, phase: Phase, spec: Spec) -> None:
        self._spec = spec.text
        if not spec.on_straggler:
            self.policy = None
        elif self.policy is None:
            self.policy = StragglerPolicy(self._workers)
        if self.policy is not None:  # its last verdict may have been replaced by another directive
            self.policy.away = phase.label != spec.phases[0].label

    def _share_anew(self, phase: Phase) -> None:
        """Decide the shares anew: shares stay equal if a policy deals with stragglers."""
        self.balances = self._wanted and phase.traits.balanced and self.policy is None
        if not self.balances:
            self.shares = [1.0 / self._workers] * self._workers
        settling = 1 if phase.traits.lockstep else FREE_SETTLING
        self._balancer = Balancer(self._workers, self.shares, settling, self._every)
        self._since, self.next_tick = None, -math.inf

    @property
    def speed(self) -> float:
        """Samples per second: the median of the last steps, which ignores a hiccup; 0: unknown."""
        return statistics.median(self.rates) if self.rates else 0.0

    def new_shares(self, figures: Any, lost: Collection[int] = ()) -> bool:
        """Update shares by the figures of all workers, a row each; return whether they changed."""
        since = self._since
        if since is None:
            self._start_tick(figures.copy())
            return False
        now = figures.copy()  # because free-running workers go on writing theirs
        passed = now - since
        if any(passed[r, STEPS] <= 0.0 for r in range(self._workers) if r not in lost):
            return False
        self._start_tick(now)
        change = self._balancer.observe(_tick(passed.tolist(), lost))
        if change is None:
            return False
        self.shares = change.shares
        if change.decided:
            self.decided.append(change)
        return True

    def _start_tick(self, now: Any) -> None:
        self._since, self.next_tick = now, float(now[0, WHOLE]) + TICK_SECONDS

    def verdict(self, speeds: Iterable[float], now: float) -> Directive | None:
        """Return the directive that is due, if any; to be called once in every step."""
        self._steps += 1
        if self._steps < self._next_look or now - self._looked < LOOK_SECONDS:
            return None
        self._looked, self._next_look = now, self._steps + LOOK_EVERY
        speeds = [float(speed) for speed in speeds]
        if self.regroups and all(speed > 0.0 for speed in speeds) and self._steps >= KNOWN_AFTER:
            self.regroups = False
            return Directive(Kind.REGROUP)
        if self.policy is not None:
            verdict = self.policy.observe(speeds, now)
            if verdict is not None:
                return Directive(Kind.LEAVE if verdict == "leave" else Kind.RETURN)
        return None


def _tick(passed: Sequence[Sequence[float]], lost: Collection[int]) -> Tick:
    rows = [[0.0] * len(row) if r in lost else row for r, row in enumerate(passed)]
    steps = [max(1.0, row[STEPS]) for row in rows]
    whole = statistics.median(row[WHOLE] for r, row in enumerate(rows) if r not in lost)
    return Tick(
        [row[SAMPLES] / n for row, n in zip(rows, steps, strict=True)],
        [row[BUSY] / n for row, n in zip(rows, steps, strict=True)],
        whole / max(1.0, sum(row[SAMPLES] for row in rows)),
    )
