"""The interface of memory that workers share: regions, barriers, locks, and waits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from phalanx.sync.arena.clock import Clock

if TYPE_CHECKING:
    from phalanx.sync.collective.collective import Collective
    from phalanx.sync.connect.channel import Channel

LEFT = (
    "another worker has left the training while this one was waiting for it",
    "All workers must leave the loop at the same point; run.stop() ends it for all.",
)


class Lock(Protocol):
    """A lock that the kernel frees when its holder dies. ``with lock:`` works too."""

    def acquire(self, blocking: bool = True) -> bool:
        """Take the lock, or return ``False`` without ``blocking`` if it is not free."""

    def release(self) -> None: ...

    def __enter__(self) -> object:
        return self.acquire()

    def __exit__(self, *_: Any) -> None:
        self.release()


class Locks(IntEnum):
    """The owners of locks by number. Shards take turns in ``SHARDS`` from ``FIRST_SHARD``."""

    CLAIMS = 0
    EVALUATION = 1
    BEST = 2
    STOP = 3
    GATE = 4
    DATA = 5
    SLOTS = 6
    EARLY = 7
    FIRST_SHARD = 8
    SHARDS = 48


def shard_lock(shard: int) -> int:
    """Return the lock of ``shard``; with very many shards, some share one."""
    return Locks.FIRST_SHARD + shard % Locks.SHARDS


class SubsetBarrier(Protocol):
    """A barrier for some of the workers."""

    def __call__(self, gone: Callable[[], bool] | None = None) -> None:
        """Like :meth:`Arena.barrier`, among the members only."""


@dataclass(frozen=True)
class LostWorker:
    """A worker of another machine that was lost."""

    rank: int
    machine: str
    address: str


class Droppable(Protocol):
    def drop(self) -> None:
        """Let the servers forget this store."""


class Hosts(Protocol):
    """The machines of a training, as one worker sees them (``remote.hosts``).

    A host is a machine whose workers share memory. Each has a leader: its first worker.
    """

    machine: str
    name: str
    here: tuple[int, ...]
    """The workers of this host, by rank; a worker's place here is its rank in the host's arena."""
    stores: list[Droppable]
    """The stores of the current training."""

    def local(self, ranks: Iterable[int]) -> list[int]:
        """Return which of ``ranks`` are on this host, by their places here."""

    def leaders(self, ranks: Iterable[int]) -> list[int]:
        """Return the first of ``ranks`` on each host that has some of them."""

    def collective(
        self, tag: str, ranks: Iterable[int], topology: str | None = None
    ) -> Collective | None:
        """Open the exchange of the leaders among ``ranks``; ``None`` if this worker is the only
        one. Without a ``topology`` the cheapest is chosen."""

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Send tensors from the first host to all others; only leaders call it."""

    def channels_to_servers(self, count: int | None) -> list[Channel]:
        """Open this worker's connections to the parameter servers. Collective."""

    def check(self) -> None:
        """Raise an error if a machine was lost without which this worker cannot go on."""

    def channels_with_first(self) -> dict[int, Channel]:
        """Open channels from the first worker to all on other machines, by rank. Collective."""

    def new_name(self) -> str:
        """Return a name for something that all workers make together, in the same order."""

    def forget(self) -> None:
        """End a training for all: close its links, and forget its stores."""

    def close(self) -> None: ...


class Arena(Protocol):
    """Memory that all workers see, and the means to take turns in it.

    With several hosts, large regions belong in :attr:`host`, the memory of the workers on this
    machine; regions of the arena itself should be small.
    """

    rank: int
    workers: int

    @property
    def host(self) -> Arena:
        """The arena of this machine's workers; on one host it is this one."""

    @property
    def hosts(self) -> Hosts | None:
        """The machines of the training; ``None`` if there is only one."""

    @property
    def lost(self) -> Collection[int]:
        """The lost workers without which the others go on."""

    def watch_losses(self, survives: Callable[[LostWorker], bool]) -> None:
        """Set ``survives``: whether this worker goes on without a lost one of another machine."""

    in_step: bool
    """Whether all workers pass the same barriers, so that a few of them can meet directly."""

    scripted: bool
    """Whether time is scripted: only one worker runs at a time, and no thread besides."""

    @property
    def pace(self) -> Clock:
        """The clock for decisions (who is fast, who has to wait): scripted time if there is any, so
        that a run repeats exactly. Events get their times from another clock."""

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
        """Lock number ``index`` (see :class:`Locks`)."""

    def subset_barrier(self, members: Sequence[int]) -> SubsetBarrier:
        """Return the barrier of ``members``, one of which is this worker. A worker waits in one
        barrier at a time, and the groups of different barriers do not overlap."""

    def await_(self, ready: Callable[[], bool], gone: Callable[[], bool] | None = None) -> None:
        """Wait until ``ready()``, which is asked again whenever some worker calls :meth:`wake`.

        A worker that waits long asks ``gone`` whether it waits in vain, and then gives up.
        """

    def wake(self) -> None:
        """Say that something has changed that others may wait for. Cheap when no worker waits."""

    def sleep(self, seconds: float) -> None:
        """Let ``seconds`` of :attr:`pace` pass: to emulate slow workers and wires."""

    def pause(self) -> None:
        """Let others run for a moment, inside a polling loop."""
