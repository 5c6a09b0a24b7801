"""What a script itself writes into the weights between two steps: clipping, a rollback, a decay.

Alone it is written once. Workers that step together each write it into their own copy, and the
first worker's copy becomes the weights of all. Where they share one memory it would be written
several times: that is refused. Copies are compared as a whole, since a script whose source writes
into weights has them; shared memory by what torch counts, and by one value of each parameter.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from phalanx.core.errors import InputError
from phalanx.sync.arena.arena import Arena
from phalanx.sync.state.replica import Replica
from phalanx.train.control import rendezvous as intents
from phalanx.train.control.control import Control
from phalanx.train.engine.active_phase import PhaseSet


class WrittenWeights:
    def __init__(
        self,
        arena: Arena,
        control: Control,
        phases: PhaseSet,
        models: Sequence[nn.Module],
        *,
        copies: bool,
    ) -> None:
        self._arena, self._control, self._phases = arena, control, phases
        self._copies = copies
        # An embedding with max_norm writes to its own weights, in every forward pass.
        self._apart = {
            id(part.weight)
            for model in models
            for part in model.modules()
            if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None
        }
        self._seen: dict[int, tuple[Replica, int, list[Tensor]]] = {}

    def note(self, index: int) -> None:
        """The weights of optimizer ``index`` are as they should be now."""
        if self._watches:
            replica = self._phases.replicas[index]
            self._seen[index] = replica, self._version(replica), self._probe(replica)

    def follow(self, index: int) -> None:
        """Before a step: take over what the script has written. Collective if it has."""
        replica = self._phases.replicas[index]
        seen = self._seen.get(index)
        if seen is None or seen[0] is not replica or not self._watches:
            return
        if seen[1] == self._version(replica) and self._as_seen(replica, seen[2]):
            return
        active, shared = self._phases.current, self._phases.shared[index]
        if not active.lockstep or replica.bound is shared.parameters:
            raise InputError(
                "the script changes the weights itself between steps, which workers "
                + ("share" if active.lockstep else "train apart"),
                "Change them before the training"
                + ("." if active.lockstep else ", or use allreduce."),
            )
        self._control.meet(intents.WRITE)
        if self._arena.host.rank == 0:
            for flat, values in zip(replica.bound, shared.parameters, strict=True):
                values.copy_(flat)
        self._arena.barrier()
        active.strategies[index].refresh()

    @property
    def _watches(self) -> bool:
        """Those who train apart write into what is theirs until they come together."""
        active = self._phases.current
        return active.every == 0 and (active.lockstep or self._phases.replicas[0].private)

    def _version(self, replica: Replica) -> int:
        return sum(
            p._version for own in replica.parameters for p in own if id(p) not in self._apart
        )

    def _as_seen(self, replica: Replica, seen: list[Tensor]) -> bool:
        now = replica.bound if self._copies else self._probe(replica)
        return all(map(torch.equal, seen, now))

    def _probe(self, replica: Replica) -> list[Tensor]:
        if self._apart:
            return []
        if self._copies:
            return [flat.clone() for flat in replica.bound]
        pairs = zip(replica.bound, replica.firsts, strict=True)
        return [flat.index_select(0, places) for flat, places in pairs]
