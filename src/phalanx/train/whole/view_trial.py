"""Tries before joining which view of a batch suits a script, if ``--view auto`` leaves it open.

In view ``whole`` each worker reads all of a batch, computes its loss and runs the optimizer; only
calls of models are shared out. A child process of the second worker computes a few batches alone
and times each of these parts. View ``parts`` is chosen if ``whole`` would take more than a tenth
longer, and steps are long enough for that to matter.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from operator import length_hint
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from phalanx.core.context import suggest_option
from phalanx.core.settings import RunSettings
from phalanx.sync.arena.arena import Arena
from phalanx.sync.state.skip_dynamo_import import step_without_compiler
from phalanx.train.checkpoint.checkpoint_manifest import read_manifest
from phalanx.train.checkpoint.kept_state import ORDER, WHOLE
from phalanx.train.proof.checks import trains_as_one, why_parts_differ
from phalanx.train.proof.child import Child, ends_if_it_fails
from phalanx.train.start.environment import Environment, detect
from phalanx.train.whole.plain_pass import begun

BATCHES, SECONDS = 5, 3.0
"""Batches that the child goes through after a warm-up one, and its most seconds."""
PATIENCE = 20.0
"""Seconds to wait for the child: the first step of an optimizer may import much."""
WORTH = 1.1
"""How many times as long a step has to take in view ``whole`` for ``parts`` to be chosen."""
MOST_SAMPLES = 10_000_000
"""The most samples of a pass."""
SHORT = 2e-3
"""Steps of fewer seconds in one process hardly get shorter with several workers."""
_SHARING, _BYTES_A_SECOND = 1.5e-3, 2e9
"""Seconds that sharing out its calls adds to a step, and bytes per second at which workers sum
gradients, as measured on two cores. In long steps neither matters."""
_BARRIERS, _BARRIERS_OF_CALLS = 5, 3
"""Barriers that are timed, and how many more a step has in view ``whole``."""


@dataclass(frozen=True)
class BatchTimes:
    """Seconds of one batch in one process, and of its parts."""

    reading: float
    calls: float
    backward: float
    update: float
    other: float

    @property
    def total(self) -> float:
        return self.reading + self.calls + self.backward + self.update + self.other

    @property
    def of_models(self) -> float:
        """Seconds in models: their calls, and the backward pass less twice the time of the loss."""
        return self.calls + max(0.0, self.backward - 2 * self.other)


def slower_whole(
    times: BatchTimes, workers: int, parameters: int, barrier: float = 0.0
) -> float | None:
    """Return the time of a step in view ``whole`` as a multiple of that in ``parts``; ``None``
    unless ``parts`` is to be chosen. ``barrier``: seconds of a barrier."""
    exchange = barrier + 8 * parameters / _BYTES_A_SECOND
    parts = times.total / workers + exchange
    alone = times.total - times.of_models  # every worker does this for the whole batch
    shared = times.of_models / workers + _SHARING + _BARRIERS_OF_CALLS * barrier
    whole = alone + shared + exchange
    return whole / parts if whole > WORTH * parts and times.total > SHORT else None


def can_be_tried(models: Sequence[nn.Module], loader: DataLoader[Any]) -> bool:
    """Whether a trial is possible, alike on all workers: view ``parts`` has to be checkable against
    one process, and data need an end, because it draws a pass's order at once."""
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        return False
    if not 0 < length_hint(loader.sampler) <= MOST_SAMPLES:
        return False
    odd = any(p.is_complex() for m in models for p in m.parameters()) or any(
        getattr(part, "sparse", False) for m in models for part in m.modules()
    )
    return not odd and why_parts_differ(models) is None


class ViewTrial:
    """Runs the script's own loop in the child, and times it."""

    def __init__(
        self,
        child: Child,
        models: Sequence[nn.Module],
        loader: DataLoader[Any],
        batches: Iterator[Any],
    ) -> None:
        self._child, self._models = child, models
        self._loader, self._batches = loader, batches
        self._spent = dict.fromkeys((f.name for f in fields(BatchTimes)), 0.0)
        self._times: list[dict[str, float]] = []
        self._began = self._asked = time.perf_counter()
        self._nested = self._noise = False
        self._drawn = torch.get_rng_state()
        plain_call = nn.Module.__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if self._nested or next(module.parameters(), None) is None:
                return plain_call(module, *args, **kwargs)
            self._nested = True
            try:
                return self.timed("calls", plain_call, module, *args, **kwargs)
            finally:
                self._nested = False

        plain_backward = torch.autograd.backward
        setattr(nn.Module, "__call__", call)  # noqa: B010
        setattr(  # noqa: B010
            torch.autograd,
            "backward",
            lambda *args, **kwargs: self.timed("backward", plain_backward, *args, **kwargs),
        )

    def timed(self, name: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return function(*args, **kwargs)
        finally:
            self._spent[name] += time.perf_counter() - began

    def step(self, plain: Callable[..., Any], optimizer: Any, closure: Any, **kwargs: Any) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self.timed("update", plain, optimizer, **kwargs)
        return loss

    def other_pass(
        self, loader: DataLoader[Any], plain: Callable[[], Iterator[Any]]
    ) -> Iterator[Any]:
        """Note that the script goes through other data, or begins its loop again."""
        trains = torch.is_grad_enabled() and any(model.training for model in self._models)
        if loader is self._loader or trains:
            self._noise = self._noise or loader is not self._loader
            self._end()
        return plain()

    def __iter__(self) -> Iterator[Any]:
        try:
            while True:
                batch = self.timed("reading", next, self._batches)
                self._drawn = torch.get_rng_state()
                yield batch
                self._note()
        except StopIteration:
            self._end()

    def _note(self) -> None:
        """Note the end of a batch: the script asks for the next one."""
        self._noise = self._noise or not torch.equal(self._drawn, torch.get_rng_state())
        now = time.perf_counter()
        self._spent["other"] = max(0.0, now - self._asked - sum(self._spent.values()))
        self._times.append(self._spent)
        self._spent = dict.fromkeys(self._spent, 0.0)
        if len(self._times) == 1:
            self._began = now
        elif len(self._times) > BATCHES or now - self._began > SECONDS:
            self._end()
        self._asked = time.perf_counter()

    def _end(self) -> None:
        counted = [] if self._noise else self._times[1:]
        # Take the shortest time of each part: other work of this machine may fall into any of them.
        found = {name: min(times[name] for times in counted) for name in self._spent if counted}
        self._child.tell(msgspec.json.encode(found))
        os._exit(0)


def _barrier_seconds(arena: Arena) -> float:
    """Return the seconds that all workers take for one barrier."""
    found = []
    for _ in range(_BARRIERS):
        began = time.perf_counter()
        arena.barrier()
        found.append(time.perf_counter() - began)
    return min(found)


class ViewChoice:
    def __init__(self, chosen: RunSettings, workers: int) -> None:
        self._open = chosen.view == "auto"
        asked = chosen.adopt and chosen.view != "parts" and chosen.loss is None
        self.whole = asked and workers > 1 and trains_as_one(chosen)
        """Whether each worker runs the script on whole batches and shares out calls of models."""
        self.slower: float | None = None
        """How many times as long a step would take in view ``whole``, if that decided the view."""
        self.trial: ViewTrial | None = None
        """In a child, the trial of which view suits the script."""
        self._environment: Environment | None = None
        if self.whole and self._open and chosen.resume is not None:
            self._open = False
            kept = read_manifest(Path(chosen.resume)).other.get("state", {}).get(ORDER, {})
            self.whole = bool(kept.get(WHOLE, True))

    def environment(self) -> Environment:
        """Where this worker runs, found out once for each training."""
        found, self._environment = self._environment or detect(), None
        return found

    def choose(
        self,
        loader: DataLoader[Any],
        plain: Callable[[], Iterator[Any]],
        models: Sequence[nn.Module],
        *,
        forkable: bool,
    ) -> Iterator[Any] | None:
        """Choose the view before the first training; return, in a child of a worker, its trial.
        ``forkable``: this worker can have a child. Collective."""
        if not self.whole or not self._open or not can_be_tried(models, loader):
            return None
        self._open = False
        self._environment = detect()
        arena = self._environment.arena
        if arena is None or self._environment.thread:
            return None
        told, barrier = arena.region("view", 1, torch.float64), _barrier_seconds(arena)
        if arena.rank == 1 and forkable:
            child = Child(PATIENCE)
            if child.id == 0:
                with ends_if_it_fails():
                    step_without_compiler()
                    self.trial = ViewTrial(child, models, loader, begun(loader, plain))
                    return iter(self.trial)
            parameters = sum(p.numel() for model in models for p in model.parameters())
            answer = child.answer(PATIENCE)
            child.end()
            # There is nothing if the child failed or took too long.
            if found := msgspec.json.decode(answer or b"{}", type=dict[str, float]):
                times = BatchTimes(**found)
                told[0] = slower_whole(times, arena.workers, parameters, barrier) or 0.0
        arena.barrier()
        self.slower = float(told[0]) or None
        self.whole = self.slower is None
        if self.slower is not None:
            suggest_option("--view whole")
        return None
