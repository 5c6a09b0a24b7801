"""What a worker trains with: its strategies, and what it shares with the others, if anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from phalanx.data.ledger import Lease, Segment
from phalanx.sync.clock import Clock
from phalanx.sync.single import Single
from phalanx.sync.strategy import Strategy, Timing

NEVER = 2**62


@dataclass(frozen=True)
class Snapshot:
    """Weights and buffers of one moment, in memory of this worker's own."""

    flats: list[list[Tensor]]
    averages: Tensor
    firsts: list[Tensor]


class Engine:
    """A worker alone: the user's optimizer, nothing shared, nobody to wait for.

    ``SharedEngine`` is the same for several workers; the rest of the room knows only this.
    """

    rank = 0
    workers = 1
    phase = 0
    lockstep = True

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer], clock: Clock) -> None:
        self._alone: list[Strategy] = [Single(o, clock) for o in optimizers]
        self._stop = self.region("stop", 2, torch.int64).numpy()  # [last epoch, newest begun]
        self._stop[0] = NEVER

    # -- memory and turns --------------------------------------------------------------------

    def region(self, name: str, count: int, dtype: torch.dtype) -> Tensor:
        """Memory that all workers of this training see, zero at first. Collective."""
        return torch.zeros(count, dtype=dtype)

    def lock(self, index: int) -> AbstractContextManager[object]:
        return nullcontext()

    def meet(self, intent: int) -> None:
        """A barrier at which all workers have to mean the same."""

    def barrier(self) -> None:
        pass

    def pause(self) -> None:
        """Give way for a moment inside a polling loop."""

    # -- steps -------------------------------------------------------------------------------

    def exchange(self, index: int, weight: float, clip: float | None) -> Timing:
        return self._alone[index].exchange(weight, clip)

    def idle(self, weight: float) -> bool:
        """This worker has no samples of a batch: take part in the steps of the others.

        ``weight`` is that of gradients from batches before. Returns whether there was a step.
        """
        return False

    def batch_done(self) -> None:
        """The others had no samples of this batch: tell them that it is over."""

    def claim(self, ticket: int, segment: Segment, want: int) -> Lease | None:
        """The next samples of a free-running segment."""
        raise AssertionError("a worker alone is always in lockstep")

    def saw(self, samples: int) -> None:
        """These samples went through the model."""

    def enter(self, phase: int) -> float | None:
        """Be in ``phase``; when that is a switch, returns when the last worker came to it.

        By then its last update is applied, and what it evaluated before the switch is done.
        """
        self.phase = phase
        return None

    # -- reading the model -------------------------------------------------------------------

    def share_buffers(self) -> None:
        """Every worker takes the average of the workers' buffers. Collective."""

    def take_snapshot(self) -> Snapshot | None:
        """Today's weights, whatever the others do to them; ``None`` where nobody can."""
        return None

    @contextmanager
    def showing(self, snapshot: Snapshot | None) -> Iterator[None]:
        """Inside, the models hold ``snapshot``."""
        yield

    # -- the end -----------------------------------------------------------------------------

    def begin_epoch(self, epoch: int) -> bool:
        """Whether ``epoch`` is to be trained; all workers train the same ones."""
        if self._stop[0] < epoch:
            return False
        self._stop[1] = max(self._stop[1], epoch)
        return True

    def request_stop(self, epoch: int) -> None:
        """End after ``epoch``, or after the newest one that any worker has begun."""
        self._stop[0] = min(self._stop[0], max(self._stop[1], epoch))

    def finish(self, collective: bool) -> None:
        """Leave the final parameters, buffers and optimizer state in ordinary tensors."""
