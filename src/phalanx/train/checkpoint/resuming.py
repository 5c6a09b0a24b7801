"""Resumes a run from a checkpoint."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.spec import parse_spec
from phalanx.policies.lanes import LaneState
from phalanx.sync.state.optimizer_state import State
from phalanx.train.checkpoint.checkpoint_index import verified
from phalanx.train.checkpoint.checkpoint_manifest import CheckpointManifest, OptimizerLayout
from phalanx.train.checkpoint.checkpointing import History, Trained
from phalanx.train.checkpoint.kept_state import restore_groups, restore_random, unpack
from phalanx.train.checkpoint.tensor_files import load
from phalanx.train.engine.best_model import BestSoFar
from phalanx.train.engine.model_state import names_of
from phalanx.train.samples.schedule import ResumePoint


class Resumed:
    """A checkpoint to continue from, as far as this worker needs it."""

    def __init__(self, path: Path, rank: int, workers: int, strategy: str) -> None:
        self._path = path
        self.manifest: CheckpointManifest = verified(path)
        self.shared = load(path, self.manifest, None)
        known = self.manifest.phase < len(parse_spec(strategy).phases)
        self.same_spec = self.manifest.strategy == strategy and known
        own = self.same_spec and self.manifest.workers == workers
        self.private: State | None = (load(path, self.manifest, rank) or None) if own else None
        """This worker's own part; ``None`` under another strategy or another number of workers."""

    @property
    def training(self) -> int:
        """The number of the checkpoint's training in the script; earlier ones are done again."""
        return _count(self.manifest.other.get("training"), 0)

    @property
    def start(self) -> ResumePoint:
        saved = self.manifest
        first_pass = _count(saved.other.get("first_pass"), saved.pass_number)
        phase = saved.phase if self.same_spec else 0  # another spec has other phases
        lanes = msgspec.convert(saved.other.get("lanes"), LaneState | None)
        at = saved.epoch, saved.pass_number, saved.position
        return ResumePoint(*at, phase, first_pass, lanes if saved.position else None)

    @property
    def best(self) -> BestSoFar | None:
        """The best value so far; ``None`` for one that allows no comparison: an infinite loss."""
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert(self.manifest.other.get("best"), BestSoFar)
        return None

    @property
    def best_weights(self) -> Path | None:
        """The file of the resumed run's best weights, unless it is newer than this checkpoint."""
        path = RunPaths(self._path.absolute().parent.parent).best
        if path.is_symlink() or not path.is_file():
            return None
        if not RunPaths(path.parent).events.is_dir():
            return path  # a copy made for this machine, whose files belong together
        return path if path.stat().st_mtime <= self.manifest.wall else None

    @property
    def history(self) -> History:
        with contextlib.suppress(msgspec.ValidationError):
            return msgspec.convert(self.manifest.other.get("history"), History)
        return []

    def unfreeze(self, models: Sequence[nn.Module]) -> None:
        """Unfreeze what the script had unfrozen before the checkpoint, in epochs now skipped."""
        flats = (flat for optimizer in self.manifest.optimizers for flat in optimizer.layouts)
        saved = {name for flat in flats for place in flat.places for name in place.names}
        names = names_of(models)
        for model in models:
            for parameter in model.parameters():
                if saved.intersection(names[id(parameter)]):
                    parameter.requires_grad_(True)

    def restore(self, trained: Trained) -> None:
        """Restore parameters, optimizer state and buffers. Collective."""
        if _shapes(trained.layouts()) != _shapes(self.manifest.optimizers):
            raise InputError(
                "the checkpoint does not match the model or optimizer that this script builds",
                "Resume with the original script; if it adds parameters to the optimizer later "
                "(add_param_group), add them before phalanx.join.",
            )
        paused = set(self.manifest.other.get("paused", []))
        for names, parameter in trained.named():
            if paused.intersection(names):
                parameter.requires_grad_(False)
        with self._whole():
            trained.engine.model.restore(self.shared, self.private)
        with torch.no_grad():
            for name, parameter in trained.frozen():
                if f"frozen.{name}" in self.shared:
                    parameter.copy_(self.shared[f"frozen.{name}"])
        trained.engine.note_weights()

    def restore_kept(self, trained: Trained) -> None:
        """Restore learning rates, and the state of the objects that the script asked to keep."""
        with self._whole():
            other = self.manifest.other
            for optimizer, saved in zip(trained.optimizers, other.get("groups", []), strict=False):
                restore_groups(optimizer, unpack(saved, self.shared))
            for name, keeper in trained.keepers.items():
                if name in other.get("state", {}):
                    keeper.load_state_dict(unpack(other["state"][name], self.shared))

    def restore_random(self) -> None:
        """Restore random states, last of all, when the next batch is about to be read."""
        with self._whole():
            restore_random(self.private or {})

    @contextlib.contextmanager
    def _whole(self) -> Iterator[None]:
        """Report errors of the ``with`` block as damage, which checksums need not show."""
        try:
            yield
        except (LookupError, ValueError, TypeError, RuntimeError) as error:
            raise InputError(
                f"checkpoint {self.manifest.number} is damaged: {error}",
                "Use an older one: phalanx resume --checkpoint N",
            ) from error


def _count(value: Any, default: int) -> int:
    return value if isinstance(value, int) and value >= 0 else default


def _shapes(optimizers: Sequence[OptimizerLayout]) -> list[Any]:
    return [
        (o.kind, [(n.dtype, n.size, [list(p.shape) for p in n.places]) for n in o.layouts])
        for o in optimizers
    ]
