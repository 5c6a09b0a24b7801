"""Random numbers of an adopted script: what all workers share, and what is each one's own.

Alone a script has one stream of torch's numbers: it decides the order of the samples, dropout, and
how the next model begins. Among several workers dropout ought to differ, and everything else has to
be the same. So a worker draws from a stream of its own inside a pass over its training data, and
outside from the one that all have in common, which is what the script seeded. Python's and NumPy's
numbers stay common: what a script decides by them (a rate of augmentation, a mixing factor of the
batch) it decides for the whole batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from phalanx.train.start.seed import CommonSeed

_FORKS = 8


class Streams(CommonSeed):
    """Torch's numbers on one worker; with one worker there is but one stream."""

    def __init__(self) -> None:
        self._rank: int | None = None
        self._in_pass = False
        self._common: torch.Tensor | None = None
        """While the worker draws from its own."""
        self._own: torch.Tensor | None = None
        self._forks: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Both streams before the script seeded torch: it may put back what was before."""

    def own(self, rank: int) -> None:
        """From now on this worker has a stream of its own in each pass."""
        self._rank = rank

    def common(self) -> None:
        """Training is over."""
        self.leave_pass()
        self._rank = self._own = None

    def enter_pass(self) -> None:
        self._in_pass = True
        if self._rank is not None and self._common is None:
            self._common = _state()
            _set(self._own_of(self._common) if self._own is None else self._own)

    def leave_pass(self) -> None:
        self._in_pass = False
        self._leave()

    def _leave(self) -> None:
        if self._common is not None:
            self._own = _state()
            _set(self._common)
            self._common = None

    @contextmanager
    def in_common(self) -> Iterator[None]:
        """Inside, torch draws what all workers draw."""
        self._leave()
        try:
            yield
        finally:
            if self._in_pass:
                self.enter_pass()

    def seeded(self, before: torch.Tensor) -> None:
        """The script has seeded torch: both streams begin anew."""
        self._own = None
        if self._common is not None:
            self._forks = [*self._forks[1 - _FORKS :], (before, self._common)]
            self._common = _state()
            _set(self._own_of(self._common))

    def put_back(self) -> None:
        """The script has set torch's state: perhaps to what it was before a seed (``fork_rng``)."""
        if self._common is None:
            return
        now = _state()
        for place, (before, common) in enumerate(self._forks):
            if torch.equal(now, before):
                self._common = common
                del self._forks[place:]
                return

    def _own_of(self, state: torch.Tensor) -> torch.Tensor:
        if not self._rank:  # the first one goes on as it would alone
            return state
        word = hashlib.sha256(state.numpy().tobytes() + f"rank {self._rank}".encode()).digest()[:8]
        seed = int.from_bytes(word, "little") >> 1
        if torch.cuda.is_available():
            torch.cuda.manual_seed_all(seed)
        return torch.Generator().manual_seed(seed).get_state()


def _state() -> torch.Tensor:
    return torch.default_generator.get_state()


def _set(state: torch.Tensor) -> None:
    torch.default_generator.set_state(state)
