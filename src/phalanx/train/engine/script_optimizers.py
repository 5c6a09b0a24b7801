"""The script's own optimizers: what they train may change, and their state is asked for."""

from __future__ import annotations

from phalanx.core.errors import InputError
from phalanx.sync.arena.arena import Arena
from phalanx.sync.policy.leases import SharedLeases
from phalanx.sync.state.replica import Replica
from phalanx.train.control import rendezvous as intents
from phalanx.train.control.control import Control
from phalanx.train.engine.active_phase import PhaseSet
from phalanx.train.engine.sample_leases import SharedSampleLeases


class ScriptOptimizers:
    """Of a worker alone: they train by themselves."""

    @property
    def outgrown(self) -> bool:
        """Whether they train parameters that they did not before."""
        return False

    def follow_parameters(self) -> bool:
        """Train what they train now: parameters may have been unfrozen or added.

        Collective where there are any; returns whether there were.
        """
        return False

    def write(self, index: int) -> None:
        """Give the script's optimizer its state as it is now."""

    def read(self, index: int) -> None:
        """The script has loaded another state into its optimizer: go on from that. Collective."""


class SharedOptimizers(ScriptOptimizers):
    """Of several workers: parameters and state lie in memory that the strategies update."""

    def __init__(
        self,
        arena: Arena,
        control: Control,
        phases: PhaseSet,
        claims: SharedLeases,
        leases: SharedSampleLeases,
    ) -> None:
        self._arena, self._control, self._phases = arena, control, phases
        self._claims, self._leases = claims, leases

    @property
    def outgrown(self) -> bool:
        return any(map(Replica.outgrown, self._phases.replicas))

    def follow_parameters(self) -> bool:
        if not self.outgrown:
            return False
        resting, given = self._phases.resting, self._claims.given
        self._phases.rest()
        if given is not None:
            given.meet(self._leases.stepped)
        self._control.meet(intents.UNFREEZE)
        if given is not None:
            given.met()
        self._phases.drain()
        self.give_back()
        self._arena.barrier()  # nothing of the old memory is read any more
        self._phases.lay_out_again()
        if not resting:
            self._phases.arrive()
        return True

    def give_back(self) -> None:
        """Parameters and the optimizers' state become ordinary tensors of this worker."""
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
