"""The memory that the workers of one host share for an optimizer: parameters, gradients, slots."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from phalanx.sync.arena.arena import Arena
from phalanx.sync.state.optimizer_state import (
    State,
    copies,
    export_tensors,
    load_tensors,
    read_slot,
    read_steps,
    write_slots,
)
from phalanx.sync.state.replica import Masks, Replica
from phalanx.sync.state.shard_optimizer import ShardOptimizer, discover_slots, is_elementwise

__all__ = ["SharedState", "State"]


@dataclass(frozen=True)
class Declared:
    """What the members of a team declare about the gradients that they offer."""

    weight: float
    clip: float
    masks: Masks
    stale: bool
    """Whether gradients were sent early that differ from those offered afterwards."""
    doubtful: bool
    """Whether gradients may not be finite, so that their sum has to be looked at."""


class SharedState:
    """One segment of memory per optimizer; every strategy of the run works on the same one.

    That is why a switch moves nothing: the next strategy finds parameters and slots where the
    last one left them. With several hosts each has such a segment, which its workers share.
    """

    def __init__(self, arena: Arena, replica: Replica, tag: str) -> None:
        self.arena, self.replica = arena, replica
        layouts, host = replica.layouts, arena.host
        self.elementwise = is_elementwise(replica.optimizer)
        names = discover_slots(replica.optimizer) if self.elementwise else None
        self._scalars = names.scalar if names else ()
        if arena.hosts is not None:
            self._agree(names.flat if names else ())
        self.parameters = [
            host.region(f"{tag}.parameters.{i}", n.size, n.dtype) for i, n in enumerate(layouts)
        ]
        self.gradients = [
            [
                host.region(f"{tag}.gradients.{i}.{row}", n.size, n.dtype)
                for row in range(host.workers)
            ]
            for i, n in enumerate(layouts)
        ]
        self.slots = [
            {s: host.region(f"{tag}.{s}.{i}", n.size, n.dtype) for s in names.flat} if names else {}
            for i, n in enumerate(layouts)
        ]
        self.steps = [
            [
                host.region(f"{tag}.steps.{i}.{shard}", len(pieces), torch.float32)
                for shard, pieces in enumerate(n.shards)
            ]
            for i, n in enumerate(layouts)
        ]
        # One table, because a row of it is written and read at once, in every step.
        table = arena.region(f"{tag}.declared", arena.workers * 6, torch.float64)
        self._declared = table.view(arena.workers, 6).numpy()
        self.weights, self.clips, self.spoilt = (self._declared[:, i] for i in range(3))
        """``spoilt`` says whose gradient is not finite."""
        self.norms = host.region(f"{tag}.norms", host.workers, torch.float64).numpy()
        self.totals = host.region(f"{tag}.totals", host.workers, torch.float64).numpy()
        """A number from each worker that is finite if all that it has summed is finite."""
        self.early = host.region(f"{tag}.early", host.workers + 2, torch.int64).numpy()
        """The place from which each worker's gradients are ready before the step; the place from
        which the first worker has summed them; and whether it sums early."""
        self.versions = host.region(f"{tag}.versions", len(layouts[0].shards), torch.int64).numpy()
        self._used = [
            arena.region(f"{tag}.used.{i}", arena.workers * len(n.places), torch.uint8)
            .view(arena.workers, len(n.places))
            .numpy()
            for i, n in enumerate(layouts)
        ]
        # Pin the memory that a device reads and writes, but none of threads: it would stay pinned.
        if not self.arena.scripted:
            own = [rows[self.arena.host.rank] for rows in self.gradients]
            self.replica.staging.pin([*self.parameters, *own])
        self._share_first_weights()

    def _agree(self, slots: tuple[str, ...]) -> None:
        """Check on every host what the workers of each host check among themselves."""
        kind = type(self.replica.optimizer).__name__
        shapes = [
            (n.size, str(n.dtype), [tuple(p.shape) for p in n.places]) for n in self.replica.layouts
        ]
        self.arena.region(f"{kind} {slots} {shapes}", 0, torch.uint8)

    def _share_first_weights(self) -> None:
        """Let every worker begin with the first one's weights and optimizer state."""
        if self.arena.rank == 0:
            self.replica.copy_out(self.parameters)
            if self.elementwise:
                self.read_optimizer()
        if self.arena.hosts is not None and self.arena.host.rank == 0:
            steps = [torch.tensor(s, dtype=torch.float64) for s in self.steps_by_parameter()]
            slots = [slot for slots in self.slots for slot in slots.values()]
            self.arena.hosts.broadcast([*self.parameters, *slots, *steps])
            self._set_steps([s.tolist() for s in steps])
        self.arena.barrier()

    def share_steps(self) -> None:
        """Copy the first host's step counts to all hosts. Collective among hosts' first workers."""
        if self.arena.hosts is not None:
            steps = [torch.tensor(s, dtype=torch.float64) for s in self.steps_by_parameter()]
            self.arena.hosts.broadcast(steps)
            self._set_steps([s.tolist() for s in steps])

    def optimizer_of(self, layout: int, shard: int) -> ShardOptimizer:
        return ShardOptimizer(
            self.replica.optimizer,
            self.replica.layouts[layout],
            shard,
            self.parameters[layout],
            self.slots[layout],
            self.steps[layout][shard],
            self._scalars,
        )

    def declare(
        self,
        weight: float,
        clip: float | None,
        masks: Masks,
        *,
        stale: bool = False,
        spoilt: bool = False,
        doubtful: bool = False,
    ) -> None:
        """Declare the weight of this worker's gradients; ``masks``: which parameters have one."""
        rank, complete = self.arena.rank, masks.count(None) == len(masks)
        self._declared[rank] = (weight, clip or 0.0, spoilt, stale, doubtful, complete)
        if not complete:
            for table, mask in zip(self._used, masks, strict=True):
                table[rank] = 1 if mask is None else list(mask)

    def spoilt_by(self) -> tuple[int, ...]:
        """Return the workers that have declared a gradient that is not finite."""
        return tuple(self.spoilt.nonzero()[0].tolist())

    def declared_by(self, ranks: slice | list[int]) -> Declared:
        """Return what ``ranks`` together have declared."""
        weights, clips, _, stale, doubtful, complete = zip(
            *self._declared[ranks].tolist(), strict=True
        )
        masks: Masks = [None] * len(self._used) if all(complete) else self.used_by(ranks)
        return Declared(sum(weights), max(clips), masks, any(stale), any(doubtful))

    def used_by(self, ranks: slice | list[int]) -> Masks:
        """Return which parameters any of ``ranks`` has declared."""
        complete = self._declared[ranks, 5:] != 0.0  # workers without a row in the other table
        if complete.all():
            return [None] * len(self._used)
        return [(table[ranks] | complete).max(axis=0).tobytes() for table in self._used]

    def export_state(self) -> State:
        """Return everything that an update reads or writes, as views."""
        state: State = {}
        for i, parameters in enumerate(self.parameters):
            state[f"parameters.{i}"] = parameters
            state.update({f"{name}.{i}": slot for name, slot in self.slots[i].items()})
            state.update({f"steps.{i}.{n}": steps for n, steps in enumerate(self.steps[i])})
        return state

    def import_state(self, state: State) -> None:
        """Take over ``state``; what already is this memory is left as it is."""
        for name, target in self.export_state().items():
            if state[name].data_ptr() != target.data_ptr():
                target.copy_(state[name])

    # -- to and from the user's optimizer, and checkpoints -----------------------------------

    def steps_by_parameter(self) -> list[list[float]]:
        """Return how often each parameter was updated, per layout."""
        found = [[0.0] * len(layout.places) for layout in self.replica.layouts]
        for i, layout in enumerate(self.replica.layouts):
            for shard, pieces in enumerate(layout.shards):
                for n, piece in enumerate(pieces):
                    found[i][piece.parameter] = float(self.steps[i][shard][n])
        return found

    def _set_steps(self, steps: list[list[float]]) -> None:
        for i, layout in enumerate(self.replica.layouts):
            for shard, pieces in enumerate(layout.shards):
                for n, piece in enumerate(pieces):
                    self.steps[i][shard][n] = steps[i][piece.parameter]

    def read_optimizer(self) -> None:
        """Continue from state that the user's optimizer already has."""
        self.take_steps_of_optimizer()
        for name in self.slots[0]:
            for slots, flat in zip(self.slots, read_slot(self.replica, name), strict=True):
                slots[name].copy_(flat)

    def take_steps_of_optimizer(self) -> None:
        found = read_steps(self.replica, tuple(self.slots[0]))
        self._set_steps([steps.tolist() for steps in found])

    def write_optimizer(self) -> None:
        """Give the user's optimizer the state, in ordinary tensors, as if it had done the steps."""
        write_slots(self.replica, self.slots, self.steps_by_parameter(), self._scalars)

    def export_whole(self) -> State:
        """Return a copy of everything, laid out in a way that does not depend on the workers."""
        state: State = {}
        for i, parameters in enumerate(self.parameters):
            state[f"parameters.{i}"] = parameters.clone()
            state |= {f"{name}.{i}": slot.clone() for name, slot in self.slots[i].items()}
            state[f"steps.{i}"] = torch.tensor(self.steps_by_parameter()[i], dtype=torch.float64)
        if not self.elementwise:
            state |= copies(export_tensors(self.replica), torch.device("cpu"))
        return state

    def import_slots(self, state: State) -> None:
        """Load the optimizer's part of an :meth:`export_whole`, and leave the parameters alone."""
        for i, slots in enumerate(self.slots):
            for name, slot in slots.items():
                if f"{name}.{i}" in state:
                    slot.copy_(state[f"{name}.{i}"])
        if self.elementwise:
            self._set_steps([state[f"steps.{i}"].tolist() for i in range(len(self.parameters))])

    def import_whole(self, state: State) -> None:
        """Continue from what :meth:`export_whole` returned, also of another number of workers."""
        for i, parameters in enumerate(self.parameters):
            parameters.copy_(state[f"parameters.{i}"])
        self.import_slots(state)
        if not self.elementwise:
            load_tensors(self.replica, state)
