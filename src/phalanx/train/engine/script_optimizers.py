"""Follows the script's own optimizers and weights, which the script may change or read."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.core.errors import InputError
from phalanx.sync.arena.arena import Arena
from phalanx.sync.state.replica import Replica, Strays
from phalanx.train.control import rendezvous as intents
from phalanx.train.control.active_phase import PhaseSet
from phalanx.train.control.control import Control
from phalanx.train.engine.sample_leases import SharedSampleLeases
from phalanx.train.samples.shared_leases import SharedLeases

_Values = list[Any]
"""A tensor or a list of numbers, per layout."""
_Seen = tuple[Replica, int, _Values]
"""A replica, torch's count of the writes to its parameters, and some of their values."""


class Inside:
    """Is true while a ``with inside:`` block is executed, also a nested one. Used in every step,
    where a context manager made from a generator would cost more."""

    def __init__(self) -> None:
        self._depth = 0

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1

    def __bool__(self) -> bool:
        return self._depth > 0


class ScriptOptimizers:
    """The script's optimizers on a worker alone, where they step as usual."""

    def outgrown(self) -> bool:
        """Whether the optimizers train parameters that they did not train before."""
        return False

    def follow_parameters(self) -> bool:
        """Follow the optimizers to the parameters that they train now: some may have been unfrozen
        or added. Return whether there were any; if so, this is collective."""
        return False

    def write(self, index: int) -> None:
        """Give the script's optimizer its state as it is now."""

    def read(self, index: int) -> None:
        """Take over a state that the script has loaded into its optimizer. Collective."""


class SharedOptimizers(ScriptOptimizers):
    """The optimizers of several workers; strategies update the shared parameters and state."""

    def __init__(
        self,
        arena: Arena,
        control: Control,
        phases: PhaseSet,
        claims: SharedLeases,
        leases: SharedSampleLeases,
        written: WrittenWeights,
    ) -> None:
        self._arena, self._control, self._phases = arena, control, phases
        self._claims, self._leases, self._written = claims, leases, written

    def outgrown(self) -> bool:
        return any(map(Replica.outgrown, self._phases.replicas))

    def follow_parameters(self) -> bool:
        if not self.outgrown():
            return False
        self._written.follow_all()
        resting, given = self._phases.resting, self._claims.given
        self._phases.rest()
        if given is not None:
            given.meet(self._leases.stepped)
        self._control.meet(intents.UNFREEZE)
        if given is not None:
            given.met()
        self._phases.drain()
        self.give_back()
        self._arena.barrier()  # so that nothing of the old memory is read any more
        self._phases.lay_out_again()
        self._written.note_all()
        if not resting:
            self._phases.arrive()
        return True

    def give_back(self) -> None:
        """Turn the parameters and the optimizers' state into ordinary tensors of this worker."""
        for replica, shared in zip(self._phases.replicas, self._phases.shared, strict=True):
            replica.stop_listening()
            flats = replica.private_flats()
            for flat, values in zip(flats, shared.parameters, strict=True):
                flat.copy_(values)
            replica.bind(flats)
            if shared.elementwise:
                shared.write_optimizer()
            replica.staging.unpin()

    def write(self, index: int) -> None:
        active, shared = self._phases.current, self._phases.shared[index]
        if not shared.elementwise and self._arena.host.rank and not active.every:
            kind = type(self._phases.replicas[index].optimizer).__name__
            raise InputError(
                f"only the first worker of each machine holds the state of {kind}",
                "Call optimizer.state_dict() only there: if run.is_first: …",
            )
        active.strategies[index].write_optimizer()

    def read(self, index: int) -> None:
        active, shared = self._phases.current, self._phases.shared[index]
        if not active.lockstep or active.every:
            raise InputError(
                f"an optimizer's state cannot be loaded while training under {active.phase.label}",
                "Load it before phalanx.join.",
            )
        self._control.meet(intents.LOAD)
        if self._arena.host.rank == 0 and shared.elementwise:
            shared.read_optimizer()
        self._arena.barrier()


class WrittenWeights:
    """Follows what a script writes into weights between steps: clipping, a rollback, a decay.

    Workers that step together, each with a copy of the weights, write into their copies; the first
    worker's copy becomes the weights of all. Into shared memory all of them would write the same
    change: that is refused. To find changes, copies are compared as a whole, since workers have
    them if the script's source writes into weights; shared memory by torch's count of writes, and
    by one value of each parameter.
    """

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
        # An embedding with max_norm writes to its own weights in every forward pass.
        self._apart = {
            id(part.weight)
            for model in models
            for part in model.modules()
            if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.max_norm is not None
        }
        self._seen: dict[int, _Seen | None] = {}

    def note_all(self) -> None:
        for index in range(len(self._phases.replicas)):
            self.note(index)

    def follow_all(self) -> None:
        """In lockstep, take over the script's changes before Phalanx reads the weights."""
        if self._phases.current.lockstep:
            for index in range(len(self._phases.replicas)):
                self.follow(index)

    def note(self, index: int) -> None:
        """Note the present weights of optimizer ``index``: later changes are the script's."""
        active, replica = self._phases.current, self._phases.replicas[index]
        # Workers that train apart write into weights of their own until they come together.
        watches = active.every == 0 and (active.lockstep or replica.private)
        self._seen[index] = self._look(replica) if watches else None

    def follow(self, index: int) -> None:
        """Take over, before a step, what the script wrote to the weights. Collective if it did."""
        replica, seen = self._phases.replicas[index], self._seen.get(index)
        active, shared = self._phases.current, self._phases.shared[index]
        moved = bool(strays := replica.strays()) and self._take_back(
            strays, allowed=replica.bound is not shared.parameters
        )
        if seen is None or seen[0] is not replica:
            return
        if not moved and _same(seen, self._look(replica, copies=False)):
            return
        if not active.lockstep or replica.bound is shared.parameters:
            raise self._refusal()
        self._control.meet(intents.WRITE)
        if self._arena.host.rank == 0:
            for flat, values in zip(replica.bound, shared.parameters, strict=True):
                values.copy_(flat)
        self._arena.barrier()
        active.strategies[index].refresh()

    def _take_back(self, strays: Strays, *, allowed: bool) -> bool:
        """Bring parameters that the script has moved (``p.data = …``) back to their places, with
        their values. Return whether the values are new."""
        if any((p.dtype, p.shape) != (place.dtype, place.shape) for p, place in strays):
            raise InputError(
                "the script has given a parameter another type or shape during the training",
                "Change the model before the loop over the data, or run the script alone, with "
                "python.",
            )
        new = [(p, place) for p, place in strays if not torch.equal(p.detach(), place)]
        if new and not allowed:
            raise self._refusal()
        for parameter, place in strays:
            place.copy_(parameter.detach())
            parameter.data = place
        return bool(new)

    def _refusal(self) -> InputError:
        lockstep = self._phases.current.lockstep
        return InputError(
            "the script changes the weights itself between steps, which workers "
            + ("share" if lockstep else "train apart"),
            "Change them before the training" + ("." if lockstep else ", or use allreduce."),
        )

    def _look(self, replica: Replica, *, copies: bool = True) -> _Seen:
        """Return what is compared later; ``copies``: make copies, as the weights will change."""
        values: _Values = []
        # A free-running worker's copy changes whenever it fetches the newest weights.
        if not self._apart and self._phases.current.lockstep:
            if not self._copies:
                values = replica.first_values()
            else:
                values = [flat.clone() for flat in replica.bound] if copies else replica.bound
        return replica, replica.written(self._apart), values


def _same(before: _Seen, now: _Seen) -> bool:
    if before[1] != now[1]:
        return False
    if before[2] and isinstance(before[2][0], Tensor):
        return all(map(torch.equal, before[2], now[2]))
    return before[2] == now[2]


class StepGuard:
    """Refuses steps that do not go through Phalanx, and keeps ``state_dict`` up to date."""

    def __init__(
        self, optimizers: Sequence[torch.optim.Optimizer], shared: ScriptOptimizers, ours: Inside
    ) -> None:
        self._ours, self._shared = ours, shared
        self._hooks = [o.register_step_pre_hook(self._check) for o in optimizers]
        for index, optimizer in enumerate(optimizers):
            self._hooks.append(optimizer.register_state_dict_pre_hook(partial(self._ask, index)))
            self._hooks.append(
                optimizer.register_load_state_dict_post_hook(partial(self._load, index))
            )

    def end(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _check(self, *_: Any) -> None:
        if not self._ours:
            raise InputError(
                "the script called optimizer.step() itself, for this worker alone",
                "Use run.step(): it agrees with the other workers first, and zeroes the gradients "
                "(with a GradScaler: run.step(scaler=scaler)).",
            )

    def _ask(self, index: int, *_: Any) -> None:
        if not self._ours:
            self._shared.write(index)

    def _load(self, index: int, *_: Any) -> None:
        if not self._ours:
            self._shared.read(index)
