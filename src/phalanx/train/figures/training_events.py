"""Writes the events of a training for the report: what happened, when, in which epoch."""

from __future__ import annotations

import sys
from typing import Any

from phalanx.observe.events import event_types as events
from phalanx.policies.balance import ShareChange
from phalanx.policies.sample_assignment import SettledSamples
from phalanx.sync.arena.arena import LostWorker
from phalanx.train.engine.sample_leases import EngineListener
from phalanx.train.step.stopwatch import EpochSums, Stopwatch


class TrainingEvents(EngineListener):
    """Writes one worker's events. ``epochs_before``: epochs go on counting when a script trains
    several models, one after another. ``far``: whether there are workers on other machines."""

    def __init__(self, rank: int, stopwatch: Stopwatch, epochs_before: int, far: bool) -> None:
        self._rank, self._stopwatch, self._before = rank, stopwatch, epochs_before
        self.epoch = epochs_before
        self._used: dict[str, tuple[int, float]] = {}
        if far:
            stopwatch.writer.also = self._links_used

    def begin_epoch(self, epoch: int) -> None:
        self.epoch = self._before + epoch
        self._stopwatch.epoch, self._stopwatch.sums = self.epoch, EpochSums()

    def epoch_done(self, began: float, rate: float, step: int | None) -> None:
        sums, now = self._stopwatch.sums, self._stopwatch.clock.now()
        self.emit(
            events.EpochDone,
            epoch=self.epoch,
            seconds=now - began,
            samples=sums.samples,
            train_loss=sums.mean_loss(),
            train_accuracy=sums.accuracy(),
            rate=rate,
            step=step,
            gradient_norm=sums.mean_norm(),
        )

    def switched(self, point: float, before: str, after: str, asked: float, pause: float) -> None:
        """Report a switch; ``point`` is in epochs. The first worker reports it."""
        at = self._before + point
        self.emit(
            events.Switched,
            time=asked, epoch=self.epoch, at_epoch=at, before=before, after=after, pause=pause,
        )  # fmt: skip

    # -- from the engine ---------------------------------------------------------------------

    def worker_lost(self, lost: LostWorker) -> None:
        self.emit(events.WorkerLost, worker=lost.rank, machine=lost.machine, address=lost.address)
        print(
            f"phalanx: worker {lost.rank} on {lost.machine} ({lost.address}) is lost; training "
            f"goes on without it",
            file=sys.stderr,
            flush=True,
        )

    def samples_settled(self, settled: SettledSamples) -> None:
        self.emit(
            events.SamplesSettled,
            worker=settled.worker,
            epoch=self.epoch,
            trained=settled.trained,
            of_epoch=settled.of_pass,
            back=settled.back,
            lost=settled.lost,
        )
        self._stopwatch.writer.flush()  # write it now, because only this worker knows it

    def shares_changed(self, change: ShareChange) -> None:
        self.emit(
            events.Balanced,
            epoch=self.epoch,
            shares=change.shares,
            refused=None if change.shares == change.tried else change.tried,
            rate_before=change.before,
            rate_after=change.after,
        )

    def _links_used(self) -> events.LinksUsed | None:
        """Report what was sent to other machines, if that is more than when it was last asked."""
        from phalanx.sync.collective.links import links_used

        used = {name.rpartition(" (")[0]: use for name, use in links_used().items()}
        if used == self._used:
            return None
        self._used, now = used, self._stopwatch.clock.now()
        return events.LinksUsed(time=now, rank=self._rank, peers=used)

    def emit(self, kind: Any, **fields: Any) -> None:
        """Write an event; ``time`` is now, unless it is among the ``fields``."""
        stopwatch = self._stopwatch
        fields = {"time": stopwatch.clock.now(), **fields}
        stopwatch.writer.emit(kind(rank=self._rank, **fields))
