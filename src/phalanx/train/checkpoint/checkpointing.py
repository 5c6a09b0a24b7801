"""Decides when a checkpoint is taken, and collects what it holds."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor, nn

from phalanx.core.context import call_at_end
from phalanx.observe.events.event_types import Saved
from phalanx.sync.state.optimizer_state import State
from phalanx.train.checkpoint.kept_state import Keeper, groups_of, pack, random_state
from phalanx.train.control.directives import CheckpointTimer
from phalanx.train.engine.best_model import Best
from phalanx.train.engine.engine import Engine
from phalanx.train.engine.model_state import frozen, names_of
from phalanx.train.samples.epoch_batches import Pass
from phalanx.train.samples.schedule import TrainingSchedule
from phalanx.train.start.environment import Environment, between_machines, saves_checkpoints
from phalanx.train.step.gradient_weight import GradientWeight
from phalanx.train.step.stopwatch import Stopwatch

if TYPE_CHECKING:
    from phalanx.train.checkpoint.checkpoint_manifest import CheckpointManifest, OptimizerLayout
    from phalanx.train.checkpoint.writer import Writer

# Modules for files are imported where they are called: most runs save no checkpoints.

LAST_WRITE_SECONDS, FAILED_WRITE_SECONDS = 120.0, 4.0
_late = threading.local()  # ``finish`` of this worker's previous training, if it was put off

History = list[dict[str, int | float | None]]


@dataclass
class Trained:
    """The objects whose state a checkpoint holds."""

    engine: Engine
    models: Sequence[nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    weight: GradientWeight
    best: Best
    history: History
    """The figures logged so far."""
    training: int
    """The number of this training: a script may train several times, one after another."""
    keepers: dict[str, Keeper] = field(default_factory=dict)

    def layouts(self) -> list[OptimizerLayout]:
        from phalanx.train.checkpoint.checkpoint_manifest import OptimizerLayout
        from phalanx.train.checkpoint.tensor_files import describe

        names = names_of(self.models)
        return [
            OptimizerLayout(
                type(replica.optimizer).__name__,
                [
                    describe(layout, [names.get(id(p), []) for p in parameters])
                    for layout, parameters in zip(replica.layouts, replica.parameters, strict=True)
                ],
            )
            for replica in self.engine.model.replicas
        ]

    def named(self) -> list[tuple[list[str], Tensor]]:
        """Return the trained parameters that belong to a model, with their names."""
        names = names_of(self.models)
        members = (p for r in self.engine.model.replicas for space in r.parameters for p in space)
        return [(names[id(p)], p) for p in members if id(p) in names]

    def paused(self) -> list[str]:
        """Return the parameters that were trained, and are frozen now."""
        return [names[0] for names, p in self.named() if not p.requires_grad]

    def frozen(self) -> list[tuple[str, Tensor]]:
        replicas = self.engine.model.replicas
        trained = {id(p) for r in replicas for space in r.parameters for p in space}
        return frozen(self.models, trained)


class Checkpointer:
    """Takes checkpoints; does nothing in a run without a folder, or without checkpoints."""

    def __init__(
        self,
        environment: Environment,
        trained: Trained,
        schedule: TrainingSchedule,
        stopwatch: Stopwatch,
        timer: CheckpointTimer,
        spend: Callable[[str, float], None],
    ) -> None:
        """``spend(phase, seconds)`` adds to what the run's phases took."""
        self._spend = spend
        self._trained, self._schedule, self._stopwatch = trained, schedule, stopwatch
        self._timer, self._settings = timer, environment.settings
        self._rank, self._workers = environment.rank, environment.workers
        self._writer: Writer | None = None
        self._last, self._after_epoch, self._saved = 0, -1, False
        self._skipped: Pass | None = None
        """The last pass, if no checkpoint was taken after it."""
        self._told, self._problems = "", 0
        self._others_are_here = not between_machines(environment)
        self._forget_end: Callable[[], None] = lambda: None
        if environment.paths is None or not saves_checkpoints(environment):
            return
        getattr(_late, "finish", self.finish)()  # its unfinished folder would be swept away
        from phalanx.train.checkpoint.checkpoint_index import next_number
        from phalanx.train.checkpoint.writer import Writer

        folder, engine = environment.paths.checkpoints, trained.engine
        cell, far = engine.region("checkpoint", 2, torch.int64), engine.channels_with_first()
        if self._rank == 0:
            cell[0] = next_number(folder)
            cell[1] = min(far, default=0) if self._settings.second_copy else 0
        engine.barrier()
        self._last = int(cell[0]) - 1
        self._writer = Writer(
            folder, self._rank, self._workers, self._settings.keep,
            far=far, second=int(cell[1]) or None, lost=lambda: engine.lost,
        )  # fmt: skip

    def after_pass(self, current: Pass) -> None:
        every = self._settings.checkpoint_epochs
        if self._writer is None or not every or (current.epoch + 1) % every:
            return
        if self._settings.checkpoint_gap > 0:
            decided = self._trained.engine.first_decides(not self._may_wait(current))
            self._skipped = None if decided else current
            if not decided:
                return
        self.save(current)
        self._after_epoch = self._stopwatch.epoch

    def _may_wait(self, current: Pass) -> bool:
        """Whether to skip this checkpoint: never the first, the last, or a possible best."""
        last, watched = self._schedule.epochs, self._trained.best.name
        young = self._saved and self._timer.age < self._settings.checkpoint_gap
        return young and watched is None and last is not None and current.epoch + 1 < last

    def save_skipped(self, collective: bool) -> None:
        """Save the last epoch at the end of the training, if its checkpoint was skipped."""
        if self._skipped is not None and collective:
            skipped, self._skipped = self._skipped, None
            self.save(skipped)

    def save(self, current: Pass) -> None:
        """Copy the state now, and write it while training goes on. Collective."""
        if self._writer is None:
            return
        began = self._stopwatch.clock.now()
        self._hand_over(current, self._writer)
        if not self._trained.engine.background:
            # These workers take turns: a worker that waited for the file later would keep the turn
            # from the workers whose parts are missing.
            self._trained.engine.barrier()
        self._spend("checkpoint", self._stopwatch.clock.now() - began)

    def _hand_over(self, current: Pass, writer: Writer) -> None:
        captured = self._trained.engine.capture()
        self._last += 1
        self._saved = True
        self._timer.saved()
        private = captured.private | random_state() | self._trained.weight.export_state()
        if self._rank != 0:
            writer.write(self._last, private)
            return
        shared = dict(captured.shared)
        for name, parameter in self._trained.frozen():
            shared[f"frozen.{name}"] = parameter.detach().clone()
        manifest = self._manifest(current, shared)
        writer.write(self._last, private, manifest, shared)
        watch, path = self._stopwatch, f"checkpoints/{self._last:06d}"
        now, epoch = watch.clock.now(), watch.epoch
        watch.writer.emit(Saved(time=now, rank=self._rank, path=path, epoch=epoch))
        self._tell()

    def _manifest(self, current: Pass, shared: State) -> CheckpointManifest:
        from phalanx.train.checkpoint.checkpoint_manifest import CheckpointManifest

        trained, schedule = self._trained, self._schedule
        best = trained.best.so_far()
        other: Mapping[str, Any] = {
            "groups": [
                pack(f"groups.{i}", groups_of(o), shared) for i, o in enumerate(trained.optimizers)
            ],
            "state": {
                n: pack(f"state.{n}", k.state_dict(), shared) for n, k in trained.keepers.items()
            },
            "paused": trained.paused(),
            "first_pass": schedule.first_pass,
            "lanes": msgspec.to_builtins(current.lanes.state) if current.lanes else None,
            "training": trained.training,
            "history": list(trained.history),
            "best": msgspec.to_builtins(best) if best else None,
        }
        return CheckpointManifest(
            number=self._last,
            wall=time.time(),
            strategy=schedule.spec.text,
            workers=self._workers,
            seed=self._settings.seed,
            batch=current.batch,
            samples=current.samples,
            epochs=schedule.epochs,
            epoch=current.epoch,
            pass_number=current.number,
            position=schedule.position,
            phase=schedule.phase,
            optimizers=trained.layouts(),
            other=dict(other),
        )

    def mark_best(self, name: str, value: float) -> None:
        """Mark this epoch's checkpoint, if it has one, as that of the best model so far."""
        if self._writer is not None and self._after_epoch == self._stopwatch.epoch:
            self._writer.mark_best(self._last, name, value)

    def end_write(self) -> None:
        """Wait for a checkpoint that is being written as the script fails, before it is cut off."""
        if self._writer is not None:
            self._writer.finish(FAILED_WRITE_SECONDS)

    def finish(self) -> None:
        """Wait until the last checkpoint is written."""
        if self._writer is not None:
            began = self._stopwatch.clock.now()
            self._writer.finish(LAST_WRITE_SECONDS)
            self._spend("checkpoint", self._stopwatch.clock.now() - began)
            self._spend("write", max(0.0, self._writer.hidden))
            self._tell()
            self._writer.close()
            self._writer = None
            self._forget_end()

    def finish_later(self) -> None:
        """Wait for the last checkpoint when the script ends, or trains again: it may go on now."""
        if self._others_are_here:
            _late.finish, self._forget_end = self.finish, call_at_end(self.finish)
        else:  # which would end, and their machines with them
            self.finish()

    def _tell(self) -> None:
        """Print why a checkpoint was not written; only for the 1st, 2nd, 4th, 8th … problem."""
        assert self._writer is not None
        problem = self._writer.problem
        if problem is None or problem == self._told:
            return
        self._told, self._problems = problem, self._problems + 1
        if self._problems.bit_count() == 1:
            with contextlib.suppress(OSError):  # the log may be on the same full disk
                print(f"phalanx: {problem}; training goes on", file=sys.stderr, flush=True)
