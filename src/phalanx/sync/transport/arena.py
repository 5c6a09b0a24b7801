"""What shared memory offers to strategies: regions, a barrier, locks. Threads or processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

LEFT = (
    "another worker has left while this one waits for it",
    "Leave the training loop on all workers alike; run.stop() ends it for everyone.",
)


class Lock(Protocol):
    """Freed by the kernel when its holder dies. ``with lock:`` works too."""

    def acquire(self, blocking: bool = True) -> bool:
        """Take it; without ``blocking``, only if it is free."""

    def release(self) -> None: ...

    def __enter__(self) -> object: ...

    def __exit__(self, *_: Any) -> None: ...


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

    def barrier(self, gone: Callable[[], bool] | None = None) -> None:
        """Wait for all workers. What they wrote before it is visible after it.

        A worker that waits long asks ``gone`` whether it waits in vain, and then gives up.
        """

    def lock(self, index: int) -> Lock:
        """Lock number ``index`` (see ``Locks``)."""

    def pause(self) -> None:
        """Give way for a moment inside a polling loop."""
