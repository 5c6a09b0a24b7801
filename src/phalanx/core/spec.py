"""Strategy specs: the grammar, what each name takes, and what it promises.

A phase is ``NAME[:KEY=VALUE]…[+CODEC[:KEY=VALUE]…]``; phases are joined by ``/``, each but the
last with the share of the epochs at which it ends (``@0.5``, or ``@40e`` for epochs). Specs live
here, without torch, so that planning can read them; implementations live in ``phalanx.sync`` and
are found through :data:`STRATEGIES`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from phalanx.core.errors import InputError
from phalanx.core.registry import Registry, did_you_mean, load_plugins

Value = int | float | str


@dataclass(frozen=True)
class Key:
    """One option of a strategy: its type and range."""

    kind: type[int] | type[float] | type[str]
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    def read(self, where: str, text: str) -> Value:
        if self.kind is str:
            if self.choices and text not in self.choices:
                raise InputError(f"{where} cannot be '{text}'", did_you_mean(text, self.choices))
            return text
        try:
            value = int(text) if self.kind is int else float(text)
        except ValueError:
            noun = "a whole number" if self.kind is int else "a number"
            raise InputError(f"{where} must be {noun}, not '{text}'", self.range()) from None
        too_low = self.low is not None and not value >= self.low
        too_high = self.high is not None and not value <= self.high
        if too_low or too_high:
            raise InputError(f"{where} is out of range: {text}", self.range())
        return value

    def range(self) -> str:
        low = "" if self.low is None else f"at least {self.low:g}"
        high = "" if self.high is None else f"at most {self.high:g}"
        return "It is " + (" and ".join(p for p in (low, high) if p) or "any number") + "."


@dataclass(frozen=True)
class Traits:
    """What a strategy promises, as far as planning and data need to know."""

    summary: str
    lockstep: bool
    """All workers step together: data come as shares of one global batch."""
    divides_rate: bool = False
    """Updates arrive one by one, so the learning rate is divided by the workers."""
    keys: Mapping[str, Key] = field(default_factory=lambda: MappingProxyType({}))


# Names that the grammar knows and this version does not build yet.
PLANNED = (
    "bsp", "ssp", "dssp", "groups", "localsgd", "diloco", "pipeline", "tensor",
)  # fmt: skip
ALIASES = {
    "ps": "async",
    "parameter_server": "async",
    "multi_worker_mirrored": "allreduce",
    "mirrored": "allreduce",
}
STRATEGIES = Registry(
    "strategy",
    {
        "single": "phalanx.sync.single:Single",
        "allreduce": "phalanx.sync.allreduce:AllReduce",
        "async": "phalanx.sync.store:Store",
    },
)
_TRAITS: dict[str, Traits] = {
    "single": Traits("one process, no communication", lockstep=True),
    "allreduce": Traits("every step waits for everyone and averages the gradients", lockstep=True),
    "async": Traits(
        "workers update shared parameters one by one and never wait for each other",
        lockstep=False,
        divides_rate=True,
    ),
}


def register_strategy(name: str, target: str, traits: Traits) -> None:
    """Make ``name`` a strategy whose class is ``target`` (``"module:Class"``)."""
    STRATEGIES.add(name, target)
    _TRAITS[name] = traits


def known_strategies() -> dict[str, Traits]:
    load_plugins()
    return dict(_TRAITS)


@dataclass(frozen=True)
class Until:
    """Where a phase ends: a share of all samples, or a number of epochs."""

    share: float | None = None
    epochs: int | None = None

    def __str__(self) -> str:
        return f"{self.share:g}" if self.share is not None else f"{self.epochs}e"


@dataclass(frozen=True)
class Phase:
    name: str
    options: Mapping[str, Value] = field(default_factory=lambda: MappingProxyType({}))
    until: Until | None = None

    @property
    def traits(self) -> Traits:
        return known_strategies()[self.name]

    @property
    def label(self) -> str:
        return ":".join([self.name, *(f"{k}={v}" for k, v in self.options.items())])


@dataclass(frozen=True)
class Spec:
    """A parsed strategy spec."""

    text: str
    phases: tuple[Phase, ...]


def parse_spec(text: str) -> Spec:
    """Read a spec; a mistake is an :class:`InputError` that names it and its remedy."""
    text = text.strip()
    if not text:
        raise InputError("the strategy is empty", "For example: --strategy allreduce")
    expanded = _expand_switch(text)
    parts = expanded.split("/")
    phases = [_phase(part, last=i == len(parts) - 1, spec=text) for i, part in enumerate(parts)]
    _check_order(phases, text)
    if len(phases) > 1 and any(p.name == "single" for p in phases):
        raise InputError(f"'single' cannot be a phase of '{text}'", "It has one worker only.")
    return Spec(text, tuple(phases))


def parse_specs(text: str) -> list[Spec]:
    """A comma-separated list of specs."""
    return [parse_spec(part) for part in text.split(",")]


def _expand_switch(text: str) -> str:
    """``switch:at=0.5`` is short for ``allreduce@0.5/async``."""
    name, _, rest = text.partition(":")
    if name != "switch":
        return text
    key, _, value = rest.partition("=")
    if key == "at" and value not in ("", "auto"):
        Key(float, 0.0, 1.0).read(f"'at' in '{text}'", value)
        return f"allreduce@{value}/async"
    if (key, value) in (("at", "auto"), ("on", "straggler")):
        raise InputError(f"'{text}' is not built yet", "Use a point: switch:at=0.5")
    raise InputError(f"'{text}' needs the point of the switch", "For example: switch:at=0.5")


def _phase(text: str, *, last: bool, spec: str) -> Phase:
    body, at, point = text.partition("@")
    if bool(at) == last:
        raise InputError(
            f"'{spec}': " + ("the last phase has no end" if last else f"'{text}' needs its end"),
            "For example: allreduce@0.5/async",
        )
    until = _until(point, spec) if at else None
    if "+" in body:
        codec = body.partition("+")[2].partition(":")[0]
        raise InputError(f"the codec '{codec}' of '{spec}' is not built yet", "Leave it out.")
    name, *options = body.split(":")
    name = ALIASES.get(name, name)
    if name in PLANNED:
        built = ", ".join(known_strategies())
        raise InputError(f"the strategy '{name}' is not built yet", f"Built: {built}.")
    if name not in STRATEGIES:
        known = [*known_strategies(), *ALIASES, *PLANNED, "switch"]
        raise InputError(f"unknown strategy '{name}'", did_you_mean(name, known))
    return Phase(name, MappingProxyType(_options(name, options)), until)


def _options(name: str, parts: list[str]) -> dict[str, Value]:
    keys = known_strategies()[name].keys
    found: dict[str, Value] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if key not in keys:
            remedy = did_you_mean(key, keys) if keys else f"'{name}' takes no options."
            raise InputError(f"'{name}' has no option '{key}'", remedy)
        if not equals:
            raise InputError(f"'{name}:{key}' needs a value", f"For example: {name}:{key}=2")
        found[key] = keys[key].read(f"'{key}' of '{name}'", value)
    return found


def _until(text: str, spec: str) -> Until:
    if re.fullmatch(r"\d+e", text):
        if int(text[:-1]) == 0:
            raise InputError(f"'@{text}' in '{spec}' ends before it begins", "Use @1e or more.")
        return Until(epochs=int(text[:-1]))
    share = Key(float, 0.0, 1.0).read(f"the point '@{text}' in '{spec}'", text)
    if not 0 < float(share) < 1:
        raise InputError(f"'@{text}' in '{spec}' leaves a phase empty", "Use 0 < share < 1.")
    return Until(share=float(share))


def _check_order(phases: list[Phase], text: str) -> None:
    ends = [p.until for p in phases[:-1] if p.until]
    for before, after in itertools.pairwise(ends):
        pair = (before.share, after.share), (before.epochs, after.epochs)
        for a, b in pair:
            if a is not None and b is not None and a >= b:
                raise InputError(
                    f"the phases of '{text}' end out of order: @{before} then @{after}",
                    "Each phase ends later than the one before it.",
                )
