"""Copies and restores the state of models, to evaluate and to save it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from phalanx.adapters.torch_models import Mirror
from phalanx.sync.arena.arena import Arena
from phalanx.sync.state.model_buffers import SharedBuffers
from phalanx.sync.state.optimizer_state import State, copies
from phalanx.sync.state.replica import Replica
from phalanx.sync.state.windows import broadcast
from phalanx.sync.strategies.single import export_alone, import_alone
from phalanx.train.control.active_phase import PhaseSet

HOST = torch.device("cpu")


@dataclass(frozen=True)
class Snapshot:
    """Weights and buffers of one moment, in this worker's own memory."""

    flats: list[list[Tensor]]
    averages: Tensor
    firsts: list[Tensor]


@dataclass(frozen=True)
class Captured:
    """A state: what is common to all workers (on the first one), and this worker's own part."""

    shared: State
    private: State


class ModelState:
    """The state of the models of a worker alone."""

    def __init__(
        self, models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        self._models, self._optimizers = list(models), list(optimizers)

    @property
    def replicas(self) -> list[Replica]:
        """The layouts in which the parameters of each optimizer are saved."""
        return [Replica(o, 1) for o in self._optimizers]

    def share_buffers(self) -> None:
        """Give every worker the average of the workers' buffers. Collective."""

    def take_snapshot(self) -> Snapshot | None:
        """Copy the present weights, which others may change; ``None`` if no other worker can."""
        return None

    @contextmanager
    def showing(self, snapshot: Snapshot | None) -> Iterator[None]:
        """Within this context, the models hold ``snapshot``."""
        yield

    def capture(self) -> Captured:
        """Copy the present state into memory of its own, on a GPU if there is room. All workers
        stand still meanwhile."""
        _refresh(self._models)
        replicas = self.replicas
        try:
            return self._captured(replicas, replicas[0].device if replicas else HOST)
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
            return self._captured(replicas, HOST)

    def _captured(self, replicas: Sequence[Replica], device: torch.device) -> Captured:
        shared: State = {}
        for i, replica in enumerate(replicas):
            shared |= {f"o{i}.{n}": value for n, value in export_alone(replica, device).items()}
        return Captured(shared | named_buffers(self._models, device), {})

    def restore(self, shared: State, private: State | None) -> None:
        """Restore what was captured; ``private``: this worker's, or ``None``. Collective."""
        for i, replica in enumerate(self.replicas):
            import_alone(replica, _part_of(shared, f"o{i}."))
        load_buffers(self._models, shared)


class SharedModelState(ModelState):
    """The state of the models of several workers."""

    def __init__(
        self, arena: Arena, models: Sequence[nn.Module], phases: PhaseSet, buffers: str
    ) -> None:
        super().__init__(models, [])
        self._arena, self._phases = arena, phases
        broadcast(arena, _untrained(models, phases.replicas))
        self.buffers = SharedBuffers(arena, models, buffers)

    @property
    def replicas(self) -> list[Replica]:
        return self._phases.replicas

    def share_buffers(self) -> None:
        if self.buffers.any:
            self.buffers.publish()
            self._arena.barrier()
            found = self.buffers.read()
            self._arena.barrier()
            self.buffers.load(*found)
            self.buffers.forget_counts()
            self.buffers.publish()  # so that the next read finds what all have now
            self._arena.barrier()

    def take_snapshot(self) -> Snapshot | None:
        flats = [replica.private_flats() for replica in self.replicas]
        for strategy, own in zip(self._phases.current.strategies, flats, strict=True):
            strategy.snapshot(own)
        return Snapshot(flats, *self.buffers.read())

    @contextmanager
    def showing(self, snapshot: Snapshot | None) -> Iterator[None]:
        if snapshot is None:
            yield
            return
        saved = self.buffers.save()
        self.buffers.load(snapshot.averages, snapshot.firsts)
        for replica, flats in zip(self.replicas, snapshot.flats, strict=True):
            replica.bind(flats)
        try:
            yield
        finally:
            self.buffers.restore(saved)
            for strategy in self._phases.current.strategies:
                strategy.bind()

    def capture(self) -> Captured:
        _refresh(self._models)
        self.buffers.publish()
        self._arena.barrier()
        private = named_buffers(self._models, HOST) | self.buffers.export_counts()
        for i, strategy in enumerate(self._phases.current.strategies):
            own = copies(strategy.export_private(), HOST)
            private |= {f"o{i}.{name}": value for name, value in own.items()}
        return Captured(self._common() if self._arena.rank == 0 else {}, private)

    def _common(self) -> State:
        whole: State = {}
        pairs = zip(self._phases.shared, self._phases.current.strategies, strict=True)
        for i, (shared, strategy) in enumerate(pairs):
            known = shared.export_state()
            extra = {n: v.clone() for n, v in strategy.export_state().items() if n not in known}
            whole |= {f"o{i}.{n}": v for n, v in (shared.export_whole() | extra).items()}
        saved = self.buffers.save()
        self.buffers.load(*self.buffers.read())
        whole |= named_buffers(self._models, HOST)
        self.buffers.restore(saved)
        return whole

    def restore(self, shared: State, private: State | None) -> None:
        pairs = zip(self._phases.shared, self._phases.current.strategies, strict=True)
        for i, (state, strategy) in enumerate(pairs):
            found = _part_of(shared, f"o{i}.")
            if self._arena.host.rank == 0 or not state.elementwise:
                state.import_whole(found)
            self._arena.barrier()
            strategy.import_state(found | state.export_state())
            strategy.begin()
            if private is not None:
                strategy.import_private(_part_of(private, f"o{i}."))
        load_buffers(self._models, private if private is not None else shared)
        if private is not None:
            self.buffers.import_counts(private)
        self.buffers.publish()
        self._arena.barrier()


def _refresh(models: Sequence[nn.Module]) -> None:
    """Update the buffers of mirrors of another library's model that do not share its memory."""
    for model in models:
        if isinstance(model, Mirror):
            model.refresh()


def _part_of(state: State, prefix: str) -> State:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def _untrained(models: Sequence[nn.Module], replicas: Sequence[Replica]) -> list[Tensor]:
    """Return parameters outside every optimizer, or frozen, which no strategy moves."""
    trained = {id(p) for replica in replicas for space in replica.parameters for p in space}
    return [p for model in models for p in model.parameters() if id(p) not in trained]


def prefixed(models: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Yield models with a prefix for their names: with several models, each one's number."""
    for i, model in enumerate(models):
        yield (f"{i}." if len(models) > 1 else ""), model


def buffers_by_name(models: Sequence[nn.Module]) -> Iterator[tuple[str, Tensor]]:
    for prefix, model in prefixed(models):
        persistent = model.state_dict(keep_vars=True)
        for name, buffer in model.named_buffers(remove_duplicate=False):
            if name in persistent:
                yield prefix + name, buffer


def named_buffers(models: Sequence[nn.Module], device: torch.device) -> State:
    """Copy the models' buffers to ``device``, by name."""
    return copies({f"buffer.{n}": b.detach() for n, b in buffers_by_name(models)}, device)


@torch.no_grad()
def load_buffers(models: Sequence[nn.Module], state: State) -> None:
    for name, buffer in buffers_by_name(models):
        if f"buffer.{name}" in state:
            buffer.copy_(state[f"buffer.{name}"])


def names_of(models: Sequence[nn.Module]) -> dict[int, list[str]]:
    """Return the names of each parameter, by its id; several if it is tied."""
    found: dict[int, list[str]] = {}
    for prefix, model in prefixed(models):
        for name, parameter in model.named_parameters(remove_duplicate=False):
            found.setdefault(id(parameter), []).append(prefix + name)
    return found


def frozen(models: Sequence[nn.Module], trained: set[int]) -> list[tuple[str, Tensor]]:
    """Return the parameters that no optimizer trains."""
    return [
        (prefix + name, parameter)
        for prefix, model in prefixed(models)
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if id(parameter) not in trained
    ]
