"""Batch shares that fit what the workers cost: proposed on evidence, tried, kept where they pay.

Pure: figures in, shares out; every worker that is given the same figures comes to the same shares.

A step of ``n`` samples takes ``a + b * n`` seconds of a worker. Others on the same cores make both
vary, so one measurement proves nothing, and a small share must not make its worker look slow:

- A proposal has shares with which all would be ready together, from the quartiles of a window of
  steps: workers whose quartiles overlap count as equally fast.
- A trial uses old and new shares in turn in short blocks, in the same minutes on the same machines.
- New shares are kept only if the steps of all were shorter with them, by more than the blocks
  differ among themselves. So shares move only where the whole is measured to be faster. After a
  trial that failed or undid earlier shares, the next pause is longer.
- When a worker becomes slower or faster, older measurements and the trial under way are worthless,
  and both begin again.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from phalanx.policies.share_proposal import (
    RECENT,
    Proposal,
    Tick,
    changed,
    faster,
    fixed_cost,
    propose,
    quartiles,
)

WORTH_KEEPING = 1.02
FEWEST, WINDOW, LOOK_EVERY = 6, 12, 2
"""Ticks that a proposal is made from, and between two looks at them."""
ODD, MOST_ODD = 0.5, 2
"""A tick is odd if it has less than ``ODD`` of the usual samples, or if all workers took more than
1 / ``ODD`` times as long as usual; at most so many in a row are left out."""
SURE_OF_CHANGE = 8
"""After a worker has changed its speed, a proposal needs so many ticks with the new speed."""
BLOCK, ROUNDS = 4, 6
"""Ticks of a block with the same shares; blocks of either kind in the longest trial."""
SURE, LIKELY = 0.95, 0.70
"""How often a tick with new shares has to beat one with old: after one round, after all rounds."""
CLEAR = 1.25
"""If the slowest tick with new shares beats the fastest one before, and the median is this many
times as fast, old shares need not be tried again. A tick that is the mean of several steps varies
less, so less is enough."""
FIRST_PAUSE, LONGEST_PAUSE = 16, 1024
"""Ticks without a trial after one that failed; doubled each time."""
LASTING = 8
"""A change of shares that stayed for so many pauses was worth making."""


@dataclass(frozen=True)
class ShareChange:
    """The shares from now on, and after a trial has been ``decided``, what it measured."""

    shares: list[float]
    decided: bool = False
    tried: list[float] = field(default_factory=list)
    before: float = 0.0
    after: float = 0.0
    """Samples a second of all with the old shares, and with those that were tried."""


class ShareTrial:
    """Old and new shares in turn, the new ones first."""

    def __init__(
        self,
        proposal: Proposal,
        old: Sequence[float],
        before: Sequence[Tick],
        block: int,
        clear: float = CLEAR,
    ) -> None:
        self.proposal, self.old = proposal, list(old)
        self._before, self._block, self._clear = list(before), block, clear
        self.ticks: tuple[list[Tick], list[Tick]] = ([], [])
        self._rounds, self.on_new = 0, True

    @property
    def shares(self) -> list[float]:
        """The shares to use now, in the block under way."""
        return self.proposal.shares if self.on_new else self.old

    def add(self, tick: Tick) -> bool:
        """Add a tick; return whether it ended its block, so that the other shares come next."""
        block = self.ticks[0 if self.on_new else 1]
        block.append(tick)
        if len(block) < self._block * (self._rounds + 1):
            return False
        self._rounds += not self.on_new
        self.on_new = not self.on_new
        return True

    def overtaken(self, tick: Tick) -> bool:
        """Whether a worker has changed its speed meanwhile."""
        same = [*self.ticks[0], tick] if self.on_new else [*self._before, *self.ticks[1], tick]
        return changed(same[:-RECENT], same[-RECENT:])

    def verdict(self) -> bool | None:
        """Whether the new shares are better, after a block of each; ``None``: not clear yet."""
        if not self.on_new:
            return self._is_clear() or None
        new, old = ([tick.pace for tick in ticks] for ticks in self.ticks)
        often, gain = faster(new, old), statistics.median(old) / statistics.median(new)
        # The more ticks there are, the less often chance alone makes so many of them faster.
        enough = SURE - (SURE - LIKELY) * (self._rounds - 1) / (ROUNDS - 1)
        if gain >= WORTH_KEEPING and often >= enough:
            return True
        hopeless = gain < 1.0 and (self._rounds > 1 or often <= 1.0 - LIKELY)
        return False if hopeless or self._rounds == ROUNDS else None

    def _is_clear(self) -> bool:
        """Whether the first block decides; the ticks before it then stand for the old shares."""
        if self.ticks[1] or not self._before:
            return False
        new, old = ([tick.pace for tick in ticks] for ticks in (self.ticks[0], self._before))
        gain = statistics.median(old) / statistics.median(new)
        if max(new) >= min(old) or gain < self._clear:
            return False
        self.ticks[1].extend(self._before)
        return True

    def fixed(self, before: Sequence[float]) -> list[float]:
        """Each worker's fixed seconds per step, from steps of two sizes; else as ``before``."""
        found = []
        for rank, known in enumerate(before):
            cost = fixed_cost(*sorted(_typical(ticks, rank) for ticks in self.ticks))
            found.append(known if cost is None else cost)
        return found

    def change(self, shares: Sequence[float]) -> ShareChange:
        new, old = (1.0 / statistics.median(t.pace for t in ticks) for ticks in self.ticks)
        return ShareChange(list(shares), True, self.proposal.shares, old, new)


def _typical(ticks: Sequence[Tick], rank: int) -> tuple[float, float, float]:
    """A worker's samples in a step, and the quartiles of what they took."""
    size = statistics.median(tick.sizes[rank] for tick in ticks)
    return (size, *quartiles([tick.busy[rank] for tick in ticks]))


class _Patience:
    """How long to leave shares alone: longer each time that trying others was in vain."""

    def __init__(self) -> None:
        self._pause, self._wait, self._gain = FIRST_PAUSE, 0, 1.0

    def tick(self) -> None:
        self._wait = max(0, self._wait - 1)

    def allows(self, found: Proposal) -> bool:
        """Whether the pause is over, or this proposal promises twice the gain of the failed one."""
        return not self._wait or found.gain - 1.0 >= 2.0 * (self._gain - 1.0)

    def lose(self, found: Proposal) -> None:
        self._wait, self._gain = self._pause, found.gain
        self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def lasted(self, ticks: int) -> bool:
        return ticks > LASTING * self._pause

    def forget(self) -> None:
        self._pause = FIRST_PAUSE


class Balancer:
    """Takes in ticks and gives out changes of shares; ignores ``settling`` ticks after a change.

    If workers meet only every few ``steps``, a tick is the mean of those, so fewer ticks suffice.
    """

    def __init__(
        self, workers: int, shares: Sequence[float] | None = None, settling: int = 1, steps: int = 1
    ) -> None:
        self._fewest, self._block = max(3, FEWEST // steps), max(2, BLOCK // steps)
        self._sure = max(RECENT + 1, SURE_OF_CHANGE // steps)
        self._look_every = LOOK_EVERY if steps == 1 else 1
        self._clear = 1.0 + (CLEAR - 1.0) / math.sqrt(steps)
        self.shares = list(shares) if shares is not None else [1.0 / workers] * workers
        """The shares in use now."""
        self._settling = self._skip = settling
        self._window: deque[Tick] = deque(maxlen=WINDOW)
        self._outdated: list[Tick] = []
        self._usual: Tick | None = None
        self._odd = 0
        self._fixed = [0.0] * workers
        self._trial: ShareTrial | None = None
        self._age = 0  # ticks since the last change that was kept
        # One for moves to equal shares, one for the others: failed ones do not delay the way back.
        self._patience = {True: _Patience(), False: _Patience()}

    def observe(self, tick: Tick) -> ShareChange | None:
        """Take in a tick; returns new shares, or ``None`` to go on as before."""
        self._age += 1
        if self._is_odd(tick):
            return None
        if self._skip:
            self._skip -= 1
            return None
        if self._trial is not None:
            return self._try(self._trial, tick)
        self._window.append(tick)
        self._notice_a_change()
        for patience in self._patience.values():
            patience.tick()
        fewest = self._sure if self._outdated else self._fewest
        if len(self._window) < fewest or self._age % self._look_every:
            return None
        found = propose(self._window, self.shares, self._fixed)
        found = self._not_past_equal(found) if found else None
        if found is None or not self._patience[self._evens_out(found)].allows(found):
            return None
        self._trial = ShareTrial(found, self.shares, self._window, self._block, self._clear)
        return self._use(ShareChange(self._trial.shares))

    def _is_odd(self, tick: Tick) -> bool:
        """Whether a tick is a short last batch or had a pause of all workers, and so says nothing
        about speeds. An epoch ends with one of each; more in a row are the new normal."""
        usual, batch = self._usual, sum(tick.sizes)
        odd = usual is not None and (
            batch < ODD * sum(usual.sizes)
            or all(ODD * now > before for now, before in zip(tick.busy, usual.busy, strict=True))
        )
        self._odd = self._odd + 1 if odd and self._odd < MOST_ODD else 0
        if not self._odd:
            self._usual = tick
        return self._odd > 0

    def _notice_a_change(self) -> None:
        """Lay aside the ticks from before a worker changed its speed, until it has the old one."""
        ticks = list(self._window)
        if len(ticks) == WINDOW:
            self._outdated = []
        if self._outdated and not changed(self._outdated, ticks):
            self._window, self._outdated = deque([*self._outdated, *ticks], WINDOW), []
        elif not self._outdated and changed(ticks[:-RECENT], ticks[-RECENT:]):
            self._outdated, self._window = ticks[:-RECENT], deque(ticks[-RECENT:], WINDOW)

    def _use(self, change: ShareChange) -> ShareChange:
        if change.shares != self.shares:
            self._skip = self._settling
            self._window.clear()
            self._outdated = []
        self.shares = list(change.shares)
        return change

    def _not_past_equal(self, found: Proposal) -> Proposal:
        """Return equal shares first if another worker is slow now, as that may change again."""
        equal = 1.0 / len(self.shares)
        rows = zip(found.shares, self.shares, strict=True)
        past = sum((then - equal) * (equal - now) for then, now in rows) > 0.0
        past = past and 2.0 * _unevenness(self.shares) > _unevenness(found.shares)
        return Proposal([equal] * len(self.shares), found.gain) if past else found

    def _evens_out(self, found: Proposal) -> bool:
        return _unevenness(found.shares) < _unevenness(self.shares)

    def _try(self, trial: ShareTrial, tick: Tick) -> ShareChange | None:
        if trial.overtaken(tick):
            self._trial = None
            return self._use(ShareChange(trial.old))
        if not trial.add(tick):
            return None
        verdict = trial.verdict()
        if verdict is None:
            return self._use(ShareChange(trial.shares))
        self._trial, self._fixed = None, trial.fixed(self._fixed)
        evens_out = self._evens_out(trial.proposal)
        if not verdict:
            self._patience[evens_out].lose(trial.proposal)
            return self._use(trial.change(trial.old))
        if evens_out:  # a slowness that comes and goes is not worth following closely
            away = self._patience[False]
            if away.lasted(self._age):
                away.forget()
            else:
                away.lose(trial.proposal)
        self._patience[True].forget()
        self._age = 0
        change = self._use(trial.change(trial.proposal.shares))
        self._window.extend(trial.ticks[0][-self._block :])
        return change


def _unevenness(shares: Sequence[float]) -> float:
    return sum(abs(share - 1.0 / len(shares)) for share in shares)
