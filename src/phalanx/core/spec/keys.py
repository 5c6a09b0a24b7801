"""Options in a spec (``NAME:KEY=VALUE``): the values that a key allows, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phalanx.core.errors import InputError
from phalanx.core.registry import did_you_mean

Value = int | float | str


@dataclass(frozen=True)
class Key:
    """One option: its type and range. Its default is in the implementation."""

    kind: type[int] | type[float] | type[str]
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    summary: str = ""

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
        low = "" if self.low is None else f"at least {_plain(self.low)}"
        high = "" if self.high is None else f"at most {_plain(self.high)}"
        return "Allowed: " + (" and ".join(p for p in (low, high) if p) or "any number") + "."


def _plain(number: float) -> str:
    return f"{int(number)}" if number == int(number) else f"{number:g}"


def read_options(name: str, keys: Mapping[str, Key], parts: Sequence[str]) -> dict[str, Value]:
    """Read options such as ``["bound=3"]`` as checked values."""
    found: dict[str, Value] = {}
    for part in parts:
        key, equals, value = part.partition("=")
        if key not in keys:
            remedy = did_you_mean(key, keys) if keys else f"'{name}' takes no options."
            raise InputError(f"'{name}' has no option '{key}'", remedy)
        if not equals:
            raise InputError(f"'{name}:{key}' needs a value", f"For example: {name}:{key}=2")
        if key in found:
            raise InputError(f"'{name}' has '{key}' twice", "Give it once.")
        found[key] = keys[key].read(f"'{key}' of '{name}'", value)
    return found


def label(name: str, options: Mapping[str, Value]) -> str:
    return ":".join([name, *(f"{k}={v}" for k, v in options.items())])
