"""One seed for everything random: alike on all ranks until they join, then each its own.

Until then a script makes what all have to share: weights, splits, lists of files, made data. What
follows is dropout and augmentation, which ought to differ. When the training is over the ranks
share one stream again: a script may train several times.
"""

from __future__ import annotations

import hashlib
import os
import random
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
    """Called before the script of a worker begins."""
    inside = context.current()
    variables = inside.environment if inside else os.environ
    chosen = RunSettings.from_json(variables.get(settings.SETTINGS, "{}"))
    seed_everything(*[chosen.seed * 1_000_003] * 3)


@dataclass
class CommonSeed:
    """What the generators of all ranks have in common: also the script's own ``manual_seed``."""

    states: tuple[bytes, bytes, bytes]
    """Of Python, NumPy and torch, each for itself: a script may seed but one of them."""

    @staticmethod
    def now() -> CommonSeed:
        _, keys, position, *_ = np.random.get_state()
        numpy = np.asarray(keys).tobytes() + repr(position).encode()
        torch_state = torch.get_rng_state().numpy().tobytes()
        return CommonSeed((repr(random.getstate()).encode(), numpy, torch_state))

    def own(self, rank: int) -> None:
        """This rank's own streams; the first one goes on as it would alone."""
        if rank:
            self._seed(f"rank {rank}")

    def common(self) -> None:
        """The same streams for all ranks again."""
        self._seed("after the training")

    def _seed(self, purpose: str) -> None:
        mixed = (hashlib.sha256(state + purpose.encode()).digest() for state in self.states)
        seed_everything(*(int.from_bytes(word[:8], "little") >> 1 for word in mixed))
