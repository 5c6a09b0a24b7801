"""Environment variables read as numbers; a wrong one is one clear line that names it."""

from __future__ import annotations

from collections.abc import Mapping

from phalanx.core.errors import InputError

_SHOWN = 40


class Variables:
    """The variables of a process; an empty one counts as not set."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._variables = variables

    def any_of(self, *names: str) -> bool:
        return any(self.text(name) for name in names)

    def text(self, name: str) -> str:
        return self._variables.get(name, "").strip()

    def number(self, name: str, *, least: int = 0, most: int = 2**63 - 1) -> int | None:
        """The whole number in ``name``; ``None`` when it is not set."""
        text = self.text(name)
        if not text:
            return None
        # int() takes more than digits, and refuses thousands of them.
        number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else -1
        if not least <= number <= most:
            wanted = f"from {least} to {most}" if most < 2**63 - 1 else f"{least} or more"
            raise InputError(
                f"{name} must be a whole number, {wanted}, not '{_short(text)}'",
                "The launcher sets it, once for each process; correct or unset it.",
            )
        return number

    def needed(self, name: str, *, beside: str, least: int = 0, most: int = 2**63 - 1) -> int:
        """The same, where ``beside`` would mean nothing without it."""
        number = self.number(name, least=least, most=most)
        if number is None:
            raise InputError(
                f"{beside} is set, but {name} is not",
                f"The launcher sets both; set {name} as well, or unset {beside}.",
            )
        return number


def _short(text: str) -> str:
    line = "".join(c if c.isprintable() else "?" for c in text)
    return line if len(line) <= _SHOWN else line[: _SHOWN - 1] + "…"
