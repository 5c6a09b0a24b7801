"""When a checkpoint is taken, what it holds, and how a run goes on from one."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.spec import parse_spec
from phalanx.observe.events.event_types import Saved
from phalanx.sync.reduce.finite import are_finite
from phalanx.sync.state.optimizer_state import State
from phalanx.train.checkpoint.buffer_state import frozen, names_of
from phalanx.train.checkpoint.checkpoint_index import next_number, verified
from phalanx.train.checkpoint.checkpoint_manifest import CheckpointManifest, OptimizerLayout
from phalanx.train.checkpoint.kept_state import (
    Keeper,
    groups_of,
    pack,
    random_state,
    restore_groups,
    restore_random,
    unpack,
)
from phalanx.train.checkpoint.named_tensors import describe
from phalanx.train.checkpoint.tensor_files import load
from phalanx.train.checkpoint.writer import Writer
from phalanx.train.loop.best_model import BestSoFar
from phalanx.train.loop.engine import Engine
from phalanx.train.loop.passes import Pass
from phalanx.train.loop.schedule import ResumePoint, Schedule
from phalanx.train.loop.stopwatch import Stopwatch
from phalanx.train.start.environment import Environment

LAST_WRITE_SECONDS = 120.0

History = list[dict[str, int | float | None]]


@dataclass
class Trained:
    """What a checkpoint is of."""

    engine: Engine
    models: Sequence[nn.Module]
    optimizers: Sequence[torch.optim.Optimizer]
    keepers: dict[str, Keeper]
    training: int = 0
    """A script may train several times, one after another."""

    def layouts(self) -> list[OptimizerLayout]:
        names = names_of(self.models)
        return [
            OptimizerLayout(
                type(replica.optimizer).__name__,
                [
                    describe(layout, [names.get(id(p), []) for p in parameters])
                    for layout, parameters in zip(replica.layouts, replica.parameters, strict=True)
                ],
            )
            for replica in self.engine.replicas
        ]

    def named(self) -> list[tuple[list[str], Tensor]]:
        """The trained parameters that belong to a model, with their names."""
        names = names_of(self.models)
        members = (p for r in self.engine.replicas for space in r.parameters for p in space)
        return [(names[id(p)], p) for p in members if id(p) in names]

    def paused(self) -> list[str]:
        """Parameters that were trained, and are frozen now."""
        return [names[0] for names, p in self.named() if not p.requires_grad]

    def frozen(self) -> list[tuple[str, Tensor]]:
        replicas = self.engine.replicas
        trained = {id(p) for r in replicas for space in r.parameters for p in space}
        return frozen(self.models, trained)


class Resumed:
    """A checkpoint to go on from, as far as this worker needs it."""

    def __init__(self, path: Path, rank: int, workers: int, strategy: str) -> None:
        self._path = path
        self.manifest: CheckpointManifest = verified(path)
        self.shared = load(path, self.manifest, None)
        known = self.manifest.phase < len(parse_spec(strategy).phases)
        self.same_spec = self.manifest.strategy == strategy and known
        own = self.same_spec and self.manifest.workers == workers
        self.private: State | None = (load(path, self.manifest, rank) or None) if own else None
        """What this worker itself left; unknown to another strategy or number of workers."""

    @property
    def training(self) -> int:
        """Which of the script's trainings it is of; those before it are done again."""
        return _count(self.manifest.other.get("training"), 0)

    @property
    def start(self) -> ResumePoint:
        saved = self.manifest
        first_pass = _count(saved.other.get("first_pass"), saved.pass_number)
        phase = saved.phase if self.same_spec else 0  # another spec's phases are others
        return ResumePoint(saved.epoch, saved.pass_number, saved.position, phase, first_pass)

    @property
    def best(self) -> BestSoFar | None:
        """``None`` also for what nobody can compare with, such as an infinite loss."""
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert(self.manifest.other.get("best"), BestSoFar)
        return None

    @property
    def best_weights(self) -> Path | None:
        """The best of the run before, unless it found them only after this checkpoint."""
        path = RunPaths(self._path.absolute().parent.parent).best
        if path.is_symlink() or not path.is_file():
            return None
        if not RunPaths(path.parent).events.is_dir():
            return path  # a copy for this machine: it holds what belongs together
        return path if path.stat().st_mtime <= self.manifest.wall else None

    @property
    def history(self) -> History:
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert(self.manifest.other.get("history"), History)
        return []

    def unfreeze(self, models: Sequence[nn.Module]) -> None:
        """What the script unfroze later is trained from the start: it will not do so again."""
        flats = (flat for optimizer in self.manifest.optimizers for flat in optimizer.layouts)
        saved = {name for flat in flats for place in flat.places for name in place.names}
        names = names_of(models)
        for model in models:
            for parameter in model.parameters():
                if saved.intersection(names[id(parameter)]):
                    parameter.requires_grad_(True)

    def restore(self, trained: Trained) -> None:
        """Parameters, optimizer state and buffers. Collective."""
        if _shapes(trained.layouts()) != _shapes(self.manifest.optimizers):
            raise InputError(
                "the checkpoint is of another model or optimizer than this script builds",
                "Resume with the script as it was: what it gave to the optimizer later "
                "(add_param_group) has to be there before phalanx.join.",
            )
        paused = set(self.manifest.other.get("paused", []))
        for names, parameter in trained.named():
            if paused.intersection(names):
                parameter.requires_grad_(False)
        with self._whole():
            trained.engine.restore(self.shared, self.private)
        with torch.no_grad():
            for name, parameter in trained.frozen():
                if f"frozen.{name}" in self.shared:
                    parameter.copy_(self.shared[f"frozen.{name}"])

    def restore_kept(self, trained: Trained) -> None:
        """Learning rates, and what the script gave to be kept."""
        with self._whole():
            self._restore_kept(trained)

    def _restore_kept(self, trained: Trained) -> None:
        other = self.manifest.other
        for optimizer, saved in zip(trained.optimizers, other.get("groups", []), strict=False):
            restore_groups(optimizer, unpack(saved, self.shared))
        for name, keeper in trained.keepers.items():
            if name in other.get("state", {}):
                keeper.load_state_dict(unpack(other["state"][name], self.shared))

    def restore_random(self) -> None:
        """Last of all, when the next batch is about to be read."""
        with self._whole():
            restore_random(self.private or {})

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Checksums tell an accident; what somebody has written on purpose shows only here."""
        try:
            yield
        except (LookupError, ValueError, TypeError, RuntimeError) as error:
            raise InputError(
                f"checkpoint {self.manifest.number} does not hold what it should: {error}",
                "Take an older one: phalanx resume --checkpoint N",
            ) from error


def _count(value: Any, default: int) -> int:
    return value if isinstance(value, int) and value >= 0 else default


def _shapes(optimizers: Sequence[OptimizerLayout]) -> list[Any]:
    return [
        (o.kind, [(n.dtype, n.size, [list(p.shape) for p in n.places]) for n in o.layouts])
        for o in optimizers
    ]


class Checkpointer:
    """Takes them; does nothing in a run without a folder, or without being asked to."""

    def __init__(
        self, environment: Environment, trained: Trained, course: Schedule, stopwatch: Stopwatch
    ) -> None:
        self._trained, self._course, self._stopwatch = trained, course, stopwatch
        self._settings = environment.settings
        self._rank, self._workers = environment.rank, environment.workers
        self.pending: Callable[[], State] | None = None
        """Gradients of this worker that wait for their step."""
        self.figures: Callable[[], dict[str, Any]] | None = None
        """What was logged, and the best of it, as JSON can hold it."""
        self._writer: Writer | None = None
        self._last, self._saved_at = 0, time.monotonic()
        self._told, self._problems = "", 0
        asked = self._settings.checkpoint_epochs or self._settings.checkpoint_minutes
        self.wanted = environment.paths is not None and bool(asked)
        if environment.paths is None or not asked:
            return
        folder = environment.paths.checkpoints
        cell = trained.engine.region("checkpoint", 2, torch.int64)
        far = trained.engine.channels_with_first()
        if self._rank == 0:
            cell[0] = next_number(folder)
            cell[1] = min(far, default=0) if self._settings.second_copy else 0
        self._writer = Writer(folder, self._rank, self._workers, self._settings.keep, far=far)
        self._writer.lost = lambda: trained.engine.lost
        trained.engine.barrier()
        self._last, self._writer.second = int(cell[0]) - 1, int(cell[1]) or None

    def is_due(self) -> bool:
        """By the minutes; for the first worker to decide."""
        minutes = self._settings.checkpoint_minutes
        if self._writer is None or minutes is None:
            return False
        return time.monotonic() - self._saved_at >= 60.0 * minutes

    def after_pass(self, current: Pass) -> None:
        every = self._settings.checkpoint_epochs
        if self._writer is not None and every and (current.epoch + 1) % every == 0:
            self.save(current)

    def save(self, current: Pass) -> None:
        """Copy the state now, write it beside the training. Collective."""
        if self._writer is None:
            return
        captured = self._trained.engine.capture()
        self._last, self._saved_at = self._last + 1, time.monotonic()
        private = captured.private | random_state() | (self.pending() if self.pending else {})
        if self._rank != 0:
            self._writer.write(self._last, private)
            return
        shared = dict(captured.shared)
        for name, parameter in self._trained.frozen():
            shared[f"frozen.{name}"] = parameter.detach().cpu().clone()
        manifest = self._manifest(current, shared)
        self._writer.write(self._last, private, manifest, shared)
        self._stopwatch.writer.emit(
            Saved(
                time=self._stopwatch.clock.now(),
                rank=self._rank,
                path=f"checkpoints/{self._last:06d}",
                epoch=self._stopwatch.epoch,
            )
        )
        self._tell()

    def _manifest(self, current: Pass, shared: State) -> CheckpointManifest:
        trained, course = self._trained, self._course
        other: Mapping[str, Any] = {
            "groups": [
                pack(f"groups.{i}", groups_of(o), shared) for i, o in enumerate(trained.optimizers)
            ],
            "state": {
                n: pack(f"state.{n}", k.state_dict(), shared) for n, k in trained.keepers.items()
            },
            "paused": trained.paused(),
            "first_pass": course.first_pass,
            "training": trained.training,
            **(self.figures() if self.figures else {}),
        }
        return CheckpointManifest(
            number=self._last,
            wall=time.time(),
            strategy=course.spec.text,
            workers=self._workers,
            seed=self._settings.seed,
            batch=current.batch,
            samples=current.samples,
            epochs=course.epochs,
            epoch=current.epoch,
            pass_number=current.number,
            position=course.position,
            phase=course.phase,
            finite=are_finite([v for n, v in shared.items() if ".parameters." in n]),
            optimizers=trained.layouts(),
            other=dict(other),
        )

    def mark_best(self, name: str, value: float) -> None:
        """The newest checkpoint is of the best model so far."""
        if self._writer is not None and self._last:
            self._writer.mark_best(self._last, name, value)

    def finish(self) -> None:
        if self._writer is not None:
            self._writer.finish(LAST_WRITE_SECONDS)
            self._tell()
            self._writer.close()

    def _tell(self) -> None:
        """A checkpoint that cannot be written is no reason to end a training; silence would be.

        Told ever more rarely: the 1st, the 2nd, the 4th, the 8th.
        """
        assert self._writer is not None
        problem = self._writer.problem
        if problem is None or problem == self._told:
            return
        self._told, self._problems = problem, self._problems + 1
        if self._problems.bit_count() == 1:
            with contextlib.suppress(OSError):  # the log may be on the same full disk
                print(f"phalanx: {problem}; training goes on", file=sys.stderr, flush=True)
