"""Events of a training, written for the report: what happened, when, in which epoch."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx.observe.events import event_types as events
from phalanx.policies.balance import ShareChange
from phalanx.policies.sample_assignment import SettledSamples
from phalanx.sync.arena.arena import LostWorker
from phalanx.train.engine.sample_leases import EngineListener
from phalanx.train.step.stopwatch import Stopwatch


class TrainingEvents(EngineListener):
    """Of one worker. ``epochs_before``: epochs go on counting when a script trains several models,
    one after another."""

    def __init__(self, rank: int, stopwatch: Stopwatch, epochs_before: int) -> None:
        self._rank, self._stopwatch, self._before = rank, stopwatch, epochs_before
        self.epoch = epochs_before
        """The epoch under way."""

    def begin_epoch(self, epoch: int) -> None:
        self.epoch = self._before + epoch
        self._stopwatch.next_epoch(self.epoch)

    def epoch_done(self, began: float, rate: float, step: int | None) -> None:
        sums, now = self._stopwatch.sums, self._stopwatch.clock.now()
        self._emit(
            events.EpochDone,
            epoch=self.epoch,
            seconds=now - began,
            samples=sums.samples,
            train_loss=sums.mean_loss(),
            train_accuracy=sums.accuracy(),
            rate=rate,
            step=step,
        )

    def planned(self, epochs: int | None, samples: int, batch: int) -> None:
        self._emit(events.Planned, epochs=epochs, samples=samples, batch=batch)

    def noted(self, text: str) -> None:
        self._emit(events.Noted, text=text)

    def logged(self, values: Mapping[str, float | None]) -> None:
        self._emit(events.Logged, epoch=self.epoch, values=dict(values))

    def saved(self, path: Path) -> None:
        self._emit(events.Saved, path=path.name, epoch=self.epoch)

    def switched(self, point: float, before: str, after: str, asked: float, pause: float) -> None:
        """``point`` in epochs; reported by the first worker."""
        self._stopwatch.writer.emit(
            events.Switched(
                time=asked,
                rank=self._rank,
                epoch=self.epoch,
                at_epoch=self._before + point,
                before=before,
                after=after,
                pause=pause,
            )
        )

    # -- from the engine ---------------------------------------------------------------------

    def worker_lost(self, lost: LostWorker) -> None:
        self._emit(events.WorkerLost, worker=lost.rank, machine=lost.machine, address=lost.address)
        print(
            f"phalanx: worker {lost.rank} on {lost.machine} ({lost.address}) is lost; training "
            f"goes on without it",
            file=sys.stderr,
            flush=True,
        )

    def samples_settled(self, settled: SettledSamples) -> None:
        self._emit(
            events.SamplesSettled,
            worker=settled.worker,
            epoch=self.epoch,
            trained=settled.trained,
            of_epoch=settled.of_pass,
            back=settled.back,
            lost=settled.lost,
        )
        self._stopwatch.writer.flush()  # at once: what it says is known to this worker alone

    def shares_changed(self, change: ShareChange) -> None:
        self._emit(
            events.Balanced,
            epoch=self.epoch,
            shares=change.shares,
            refused=None if change.shares == change.tried else change.tried,
            rate_before=change.before,
            rate_after=change.after,
        )

    def _emit(self, kind: Any, **fields: Any) -> None:
        stopwatch = self._stopwatch
        stopwatch.writer.emit(kind(time=stopwatch.clock.now(), rank=self._rank, **fields))
