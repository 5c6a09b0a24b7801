"""Strategy specs: the grammar.

A phase is ``NAME[:KEY=VALUE]…[+CODEC[:KEY=VALUE]…]``; phases are joined by ``/``, each but the
last with the share of the epochs at which it ends (``@0.5``, or ``@40e`` for epochs). Specs live
here, without torch, so that planning can read them; implementations live in ``phalanx.sync`` and
are found through :data:`STRATEGIES`.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from phalanx.core.errors import InputError
from phalanx.core.registry import did_you_mean
from phalanx.core.spec.codecs import CodecSpec, known_codecs, parse_codec
from phalanx.core.spec.keys import Key, Value, label, read_options
from phalanx.core.spec.strategies import (
    ALIASES,
    PLANNED,
    STRATEGIES,
    Traits,
    known_strategies,
    register_strategy,
)

__all__ = [
    "STRATEGIES",
    "Key",
    "Phase",
    "Spec",
    "Traits",
    "Until",
    "Value",
    "known_strategies",
    "parse_spec",
    "parse_specs",
    "register_strategy",
]

ON_STRAGGLER = "switch:on=straggler"
EQUAL_SHARES = ":shares=equal"
"""May be anywhere in a spec; applies to all of its phases."""
AUTO_SWITCH = "switch:at=auto"
"""A switch where past runs recommend it, as the command line finds; else in the middle."""


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
    codec: CodecSpec | None = None

    @property
    def traits(self) -> Traits:
        return known_strategies()[self.name]

    @property
    def label(self) -> str:
        named = label(self.name, self.options)
        return f"{named}+{self.codec.label}" if self.codec else named


@dataclass(frozen=True)
class Spec:
    """A parsed strategy spec."""

    text: str
    phases: tuple[Phase, ...]
    on_straggler: bool = False
    """Whether the first phase holds, except while a worker is transiently slow: then the second."""
    equal_shares: bool = False
    """Whether batch shares stay equal whatever speeds are measured."""


def parse_spec(text: str) -> Spec:
    """Read a spec; a mistake is an :class:`InputError` that names it and its remedy."""
    text = text.strip()
    if not text:
        raise InputError("the strategy is empty", "For example: --strategy allreduce")
    if EQUAL_SHARES in text:
        return replace(parse_spec(text.replace(EQUAL_SHARES, "")), text=text, equal_shares=True)
    if text == ON_STRAGGLER:
        return Spec(text, (Phase("allreduce"), Phase("async")), on_straggler=True)
    expanded = _expand_switch(text)
    parts = expanded.split("/")
    phases = [_phase(part, last=i == len(parts) - 1, spec=text) for i, part in enumerate(parts)]
    ends = [p.until for p in phases[:-1] if p.until]
    for before, after in itertools.pairwise(ends):
        pair = (before.share, after.share), (before.epochs, after.epochs)
        for a, b in pair:
            if a is not None and b is not None and a >= b:
                raise InputError(
                    f"the phases of '{text}' end out of order: @{before} then @{after}",
                    "Let each phase end later than the one before it.",
                )
    if len(phases) > 1 and any(p.name == "single" for p in phases):
        raise InputError(f"'single' cannot be a phase of '{text}'", "Use another strategy.")
    return Spec(text, tuple(phases))


def parse_specs(text: str) -> list[Spec]:
    """Read a comma-separated list of specs."""
    return [parse_spec(part) for part in text.split(",")]


def _expand_switch(text: str) -> str:
    """``switch:at=0.5`` is short for ``allreduce@0.5/async``."""
    name, _, rest = text.partition(":")
    if name != "switch":
        return text
    key, _, value = rest.partition("=")
    if key == "at" and "+" in value:
        point, _, codec = value.partition("+")
        raise InputError(
            f"'{text}': a codec belongs to a phase, not to the whole switch",
            f"Write out the phases: allreduce+{codec}@{point}/async+{codec}",
        )
    if text == AUTO_SWITCH:
        return "allreduce@0.5/async"
    if key == "at" and value:
        Key(float, 0.0, 1.0).read(f"'at' in '{text}', unless it is auto,", value)
        return f"allreduce@{value}/async"
    raise InputError(
        f"'{text}' does not say when to switch",
        "For example: switch:at=0.5, or switch:on=straggler",
    )


def _phase(text: str, *, last: bool, spec: str) -> Phase:
    body, at, point = text.partition("@")
    if bool(at) == last:
        raise InputError(
            f"'{spec}': " + ("the last phase takes no end" if last else f"'{text}' needs an end"),
            "For example: allreduce@0.5/async",
        )
    until = _until(point, spec) if at else None
    body, plus, codec = body.partition("+")
    if plus and body == "single":
        raise InputError(f"'{spec}': 'single' sends nothing", "Leave the codec out.")
    name, *options = body.split(":")
    name = ALIASES.get(name, name)
    if name in PLANNED:
        built = ", ".join(known_strategies())
        raise InputError(f"the strategy '{name}' is not implemented", f"Use one of {built}.")
    if name not in STRATEGIES:
        if name in known_codecs():
            raise InputError(
                f"'{name}' is a codec, not a strategy", f"For example: allreduce+{body}"
            )
        if "," in name:
            raise InputError(
                f"'{spec}' names several strategies", "Use phalanx compare for a list."
            )
        known = [*known_strategies(), *ALIASES, "switch"]
        raise InputError(f"unknown strategy '{name}'", did_you_mean(name, known))
    traits = known_strategies()[name]
    found = read_options(name, traits.keys, options)
    if traits.check:
        traits.check(found)
    return Phase(name, MappingProxyType(found), until, parse_codec(codec) if plus else None)


def _until(text: str, spec: str) -> Until:
    if re.fullmatch(r"\d{1,9}e", text):
        if int(text[:-1]) == 0:
            raise InputError(f"'@{text}' in '{spec}' leaves a phase empty", "Use @1e or more.")
        return Until(epochs=int(text[:-1]))
    share = Key(float, 0.0, 1.0).read(f"the point '@{text}' in '{spec}'", text)
    if not 0 < float(share) < 1:
        raise InputError(f"'@{text}' in '{spec}' leaves a phase empty", "Use 0 < share < 1.")
    return Until(share=float(share))
