"""One seed for all random numbers: the same on all ranks until they join, then different ones.

Before it joins, a script makes what all ranks have to share: weights, splits, lists of files,
synthetic data. Then follow dropout and augmentation, which ought to differ. When the training is
over the ranks share one stream again: a script may train several times.

In one process, an adopted script has one stream of torch's numbers, for the order of samples,
dropout, and the next model's weights. A worker draws from a stream of its own inside a pass over
its training data, and outside from the one that all workers have in common. Python's and NumPy's
numbers stay common: what a script decides by them, it decides for the whole batch.
"""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch

from phalanx.core import context, settings
from phalanx.core.settings import RunSettings


def seed_everything(python: int, numpy: int, torch_word: int) -> None:
    random.seed(python)
    np.random.seed(numpy % 2**32)
    torch.manual_seed(torch_word)


def seed_this_worker() -> None:
    """Seed a worker before its script begins."""
    inside = context.current()
    variables = inside.environment if inside else os.environ
    chosen = RunSettings.from_json(variables.get(settings.SETTINGS, "{}"))
    seed_everything(*[chosen.seed * 1_000_003] * 3)


@dataclass
class CommonSeed:
    """The states that generators of all ranks have in common, also after ``manual_seed``."""

    states: tuple[bytes, bytes, bytes]
    """The states of Python, NumPy and torch, apart, because a script may seed only one of them."""

    @staticmethod
    def now() -> CommonSeed:
        _, keys, position, *_ = np.random.get_state()
        numpy = np.asarray(keys).tobytes() + repr(position).encode()
        torch_state = torch.get_rng_state().numpy().tobytes()
        return CommonSeed((repr(random.getstate()).encode(), numpy, torch_state))

    def own(self, rank: int) -> None:
        """Give this rank random streams of its own; the first rank continues as it would alone."""
        if rank:
            self._seed(f"rank {rank}")

    def common(self) -> None:
        """Give all ranks the same streams again."""
        self._seed("after the training")

    def _seed(self, purpose: str) -> None:
        mixed = (hashlib.sha256(state + purpose.encode()).digest() for state in self.states)
        seed_everything(*(int.from_bytes(word[:8], "little") >> 1 for word in mixed))


_FORKS = 8


class Streams(CommonSeed):
    """Torch's random numbers on one worker, in two streams; a single worker has only one."""

    def __init__(self) -> None:
        self._rank: int | None = None
        self._in_pass = False
        self._common: torch.Tensor | None = None
        """The common stream, while the worker draws from its own."""
        self._own: torch.Tensor | None = None
        self._forks: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Both streams before each seeding of torch by the script, which may restore them."""

    def own(self, rank: int) -> None:
        """Give this worker a stream of its own in each pass from now on."""
        self._rank = rank

    def common(self) -> None:
        """Return to the common stream, as training is over."""
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
        """Within this context, torch draws the same numbers on all workers."""
        self._leave()
        try:
            yield
        finally:
            if self._in_pass:
                self.enter_pass()

    def seeded(self, before: torch.Tensor) -> None:
        """Begin both streams anew, because the script has seeded torch."""
        self._own = None
        if self._common is not None:
            self._forks = [*self._forks[1 - _FORKS :], (before, self._common)]
            self._common = _state()
            _set(self._own_of(self._common))

    def put_back(self) -> None:
        """Follow the script, which has set torch's state, perhaps back (``fork_rng``)."""
        if self._common is None:
            return
        now = _state()
        for place, (before, common) in enumerate(self._forks):
            if torch.equal(now, before):
                self._common = common
                del self._forks[place:]
                return

    def _own_of(self, state: torch.Tensor) -> torch.Tensor:
        if not self._rank:  # the first rank continues as it would alone
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
