"""Random numbers of an adopted script: what all workers share, and what is each one's own.

Alone a script has one stream of torch's numbers: it decides the order of the samples, and dropout.
Among several workers the order has to be the same on all, and dropout ought to differ. So loaders
draw from a stream that all have in common, which is what the script seeded, and everything else
from the worker's own. Python's and NumPy's numbers stay common: what a script decides by them (a
rate of augmentation, a mixing factor of the batch) it decides for the whole batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from phalanx.train.start.seed import CommonSeed


class Streams(CommonSeed):
    """Torch's numbers on one worker; with one worker there is but one stream."""

    def __init__(self) -> None:
        self._rank = 0
        self._common: torch.Tensor | None = None

    def own(self, rank: int) -> None:
        """From now on this worker has a stream of its own."""
        self._rank, self._common = rank, torch.get_rng_state()
        self._begin_own()

    def seeded(self) -> None:
        """The script has seeded torch: both streams begin anew."""
        if self._common is not None:
            self._common = torch.get_rng_state()
            self._begin_own()

    def common(self) -> None:
        """Training is over: every worker goes on with the common stream."""
        if self._common is not None:
            torch.set_rng_state(self._common)
            self._common = None

    @contextmanager
    def in_common(self) -> Iterator[None]:
        """Inside, torch draws what all workers draw."""
        if self._common is None:
            yield
            return
        own = torch.get_rng_state()
        torch.set_rng_state(self._common)
        try:
            yield
        finally:
            self._common = torch.get_rng_state()
            torch.set_rng_state(own)

    def _begin_own(self) -> None:
        if self._rank:  # the first one goes on as it would alone
            state = torch.get_rng_state().numpy().tobytes()
            word = hashlib.sha256(state + f"rank {self._rank}".encode()).digest()[:8]
            seed = int.from_bytes(word, "little") >> 1
            torch.default_generator.manual_seed(seed)
            if torch.cuda.is_available():
                torch.cuda.manual_seed_all(seed)
