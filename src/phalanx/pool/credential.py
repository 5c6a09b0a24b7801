"""How a machine is entered: a reference to a secret or, from a private file only, the secret.

Whatever is printed, logged or written of a credential is its reference; an inline password is
kept in a :class:`~pydantic.SecretStr` and shows as ``(hidden)`` everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pydantic import SecretStr

Kind = Literal["env", "key", "agent", "prompt", "inline"]


@dataclass(frozen=True)
class Credential:
    """``env:NAME``, ``key:PATH``, ``agent``, ``prompt``, or an inline password."""

    kind: Kind
    name: str = ""
    secret: SecretStr | None = field(default=None, repr=False)

    def __str__(self) -> str:
        if self.kind == "inline":
            return "(hidden)"
        return f"{self.kind}:{self.name}" if self.name else self.kind


def read_credential(value: object) -> object:
    """Text into a :class:`Credential`; anything else is left to the model to judge."""
    if not isinstance(value, str):
        return value
    scheme, colon, name = value.partition(":")
    if colon and scheme == "env":
        if not name.isidentifier():
            raise ValueError("env: needs the name of a variable")
        return Credential("env", name)
    if colon and scheme == "key":
        if not name:
            raise ValueError("key: needs a path")
        return Credential("key", name)
    if value == "agent":
        return Credential("agent")
    if value == "prompt":
        return Credential("prompt")
    if not value:
        raise ValueError("a password cannot be empty")
    return Credential("inline", secret=SecretStr(value))
