"""What shared memory offers to strategies: regions, a barrier, locks. Threads or processes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

import torch


class Arena(Protocol):
    """Memory that all workers of one host see, and the means to take turns in it."""

    rank: int
    workers: int

    def region(self, name: str, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A shared tensor of ``count`` zeros.

        Collective: every worker asks for the same regions in the same order.
        """

    def rewind(self) -> None:
        """Forget all regions, so that their memory serves the next training. Collective."""

    def barrier(self) -> None:
        """Wait for all workers. What they wrote before it is visible after it."""

    def lock(self, index: int) -> AbstractContextManager[None]:
        """Lock number ``index``; freed when its holder dies."""

    def pause(self) -> None:
        """Give way for a moment inside a polling loop; raises when the run is aborted."""

    def abort(self) -> None:
        """Make every waiting worker give up."""
