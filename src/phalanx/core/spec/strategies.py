"""Strategies by name: their properties and options. Their classes live in ``phalanx.sync``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from phalanx.core.errors import InputError
from phalanx.core.registry import Registry, load_plugins
from phalanx.core.spec.keys import Key, Value


@dataclass(frozen=True)
class Traits:
    """The properties of a strategy that planning and data depend on."""

    summary: str
    lockstep: bool
    """Whether all workers step together, each with its share of one global batch."""
    divides_rate: bool = False
    """Whether updates arrive one by one, so that the number of their sources divides the rate."""
    keys: Mapping[str, Key] = field(default_factory=lambda: MappingProxyType({}))
    balanced: bool = False
    """Whether workers wait for the slowest, so that shares follow the measured speeds."""
    local: bool = False
    """Whether workers train independently and synchronise after ``every`` global batches."""
    grouped: bool = False
    """Whether workers form groups that step together; groups do not wait for each other."""
    any_optimizer: bool = False
    """Whether optimizers may be other than element-wise."""
    check: Callable[[Mapping[str, Value]], None] | None = None
    """Refuses options that contradict each other."""


def _check_range(options: Mapping[str, Value]) -> None:
    low, high = int(options.get("low", 2)), int(options.get("high", 8))
    if low > high:
        raise InputError(
            f"'dssp' has low={low} above high={high}", "For example: dssp:low=2:high=8"
        )


# Names that the grammar knows and this version does not build yet.
PLANNED = ("pipeline", "tensor")
ALIASES = {
    "ps": "async",
    "parameter_server": "async",
    "multi_worker_mirrored": "allreduce",
    "mirrored": "allreduce",
    "central_storage": "bsp",
}
STRATEGIES = Registry(
    "strategy",
    {
        "single": "phalanx.sync.strategies.single:Single",
        "allreduce": "phalanx.sync.strategies.allreduce:AllReduce",
        "async": "phalanx.sync.strategies.asynchronous:Asynchronous",
        "bsp": "phalanx.sync.strategies.bsp:BulkSynchronous",
        "ssp": "phalanx.sync.strategies.bounded:StaleSynchronous",
        "dssp": "phalanx.sync.strategies.bounded:DynamicStaleSynchronous",
        "groups": "phalanx.sync.strategies.groups:Groups",
        "localsgd": "phalanx.sync.strategies.local_sgd:LocalSGD",
        "diloco": "phalanx.sync.strategies.diloco:DiLoCo",
    },
)
_OVERLAP = Key(str, choices=("yes", "no"), summary="push during the next step's computation (no)")
_SERVERS = Key(int, 1, 64, summary="machines that hold the parameters (by number)")
_BOUND_UPPER = 1 << 20
_TRAITS: dict[str, Traits] = {
    "single": Traits("one process, no communication", lockstep=True, any_optimizer=True),
    "allreduce": Traits(
        "every step waits for all workers and averages the gradients",
        lockstep=True,
        balanced=True,
        any_optimizer=True,
        keys={
            "topology": Key(
                str,
                choices=("direct", "ring", "tree", "butterfly"),
                summary="how machines exchange sums (by number and size)",
            )
        },
    ),
    "async": Traits(
        "workers update shared parameters one by one and never wait for each other",
        lockstep=False,
        divides_rate=True,
        keys={"overlap": _OVERLAP, "servers": _SERVERS},
    ),
    "bsp": Traits(
        "synchronous, through the parameter store, which applies a step when all have pushed",
        lockstep=True,
        balanced=True,
        keys={"servers": _SERVERS},
    ),
    "ssp": Traits(
        "like async, but no worker is more than a few steps ahead of the slowest",
        lockstep=False,
        divides_rate=True,
        balanced=True,
        keys={
            "bound": Key(int, 0, _BOUND_UPPER, summary="steps ahead of the slowest (3)"),
            "overlap": _OVERLAP,
            "servers": _SERVERS,
        },
    ),
    "dssp": Traits(
        "like ssp, with the bound chosen from measured step times",
        lockstep=False,
        divides_rate=True,
        balanced=True,
        keys={
            "low": Key(int, 0, _BOUND_UPPER, summary="smallest bound (2)"),
            "high": Key(int, 0, _BOUND_UPPER, summary="largest bound (8)"),
            "servers": _SERVERS,
        },
        check=_check_range,
    ),
    "groups": Traits(
        "all-reduce inside groups, asynchronous between them",
        lockstep=False,
        divides_rate=True,
        balanced=True,
        grouped=True,
        keys={
            "size": Key(int, 1, 64, summary="workers in a group (2)"),
            "by": Key(
                str, choices=("rank", "machine", "speed"), summary="how groups are formed (rank)"
            ),
            "servers": _SERVERS,
        },
    ),
    "localsgd": Traits(
        "workers train independently and average their parameters every few batches",
        lockstep=True,
        balanced=True,
        local=True,
        any_optimizer=True,
        keys={"every": Key(int, 1, _BOUND_UPPER, summary="batches between averages (8)")},
    ),
    "diloco": Traits(
        "like localsgd, but an outer optimizer applies the averaged change",
        lockstep=True,
        balanced=True,
        local=True,
        any_optimizer=True,
        keys={
            "every": Key(int, 1, _BOUND_UPPER, summary="batches between outer steps (50)"),
            "rate": Key(float, 0.0, summary="learning rate of the outer step (0.7)"),
            "momentum": Key(float, 0.0, 1.0, summary="Nesterov momentum of the outer step (0.9)"),
        },
    ),
}


def register_strategy(name: str, target: str, traits: Traits) -> None:
    """Make ``name`` a strategy whose class is ``target`` (``"module:Class"``)."""
    STRATEGIES.add(name, target)
    _TRAITS[name] = traits


def known_strategies() -> dict[str, Traits]:
    load_plugins()
    return dict(_TRAITS)
