"""A machine and a pool of machines, as read from a blueprint.

The description of each field is also a part of the error about a wrong value
("gpus must be a whole number, 0 or more").
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SecretStr,
)

Kind = Literal["env", "key", "agent", "prompt", "inline"]


@dataclass(frozen=True)
class Credential:
    """A reference (``env:NAME``, ``key:PATH``, ``agent``, ``prompt``), or an inline password.

    Only the reference is ever printed, logged or written; an inline password is kept in a
    :class:`~pydantic.SecretStr` and shows as ``(hidden)`` everywhere.
    """

    kind: Kind
    name: str = ""
    secret: SecretStr | None = field(default=None, repr=False)

    def __str__(self) -> str:
        if self.kind == "inline":
            return "(hidden)"
        return f"{self.kind}:{self.name}" if self.name else self.kind


def read_credential(value: object) -> object:
    """Convert text to a :class:`Credential`; the model checks anything else."""
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


HERE = "here"
"""The ``host`` of the machine on which the command runs."""

SELECTION_WORDS = ("all", "cpus", "gpus", "energy", "fastest", "auto")
_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
_HOST = r"^[A-Za-z0-9\[:][A-Za-z0-9._:%\[\]-]{0,252}$"
_USER = r"^[A-Za-z0-9_][A-Za-z0-9_.@\\-]{0,63}\$?$"
_JUMP = (
    r"^(?:(?P<user>[A-Za-z0-9_][A-Za-z0-9_.\\-]{0,63}\$?)@)?"
    r"(?P<host>[A-Za-z0-9][A-Za-z0-9._-]{0,252}|\[[0-9A-Fa-f:.%]{2,60}\])(?::(?P<port>\d{1,5}))?$"
)
_FINGERPRINT = r"^SHA256:[A-Za-z0-9+/]{43}=?$"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT])(i?)B?", re.IGNORECASE)


def _check_name(value: str) -> str:
    if value in SELECTION_WORDS:
        raise ValueError("a word of selections")
    return value


def _check_path(value: str) -> str:
    # A command would read an argument with a leading dash as an option.
    if not value.strip() or value.startswith("-") or not value.isprintable():
        raise ValueError("not a path")
    return value


def read_size(value: object) -> object:
    """Convert ``16GB`` or ``16GiB`` to bytes. A number without a unit is refused as ambiguous."""
    if not isinstance(value, str):
        return value
    found = _SIZE.fullmatch(value.strip())
    if not found:
        raise ValueError("not a size")
    number, unit, binary = found.groups()
    power = "KMGT".index(unit.upper()) + 1
    return int(float(number) * (1024 if binary else 1000) ** power)


FilePath = Annotated[str, AfterValidator(_check_path)]


class Machine(BaseModel):
    """One host and what is known about it; ``None`` is unknown."""

    # Inputs are hidden because one of them may be a password.
    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, allow_inf_nan=False
    )

    name: Annotated[str, AfterValidator(_check_name)] = Field(
        pattern=_NAME,
        description=f"letters, digits and . _ -, but not a word that selections use "
        f"({', '.join(SELECTION_WORDS)})",
    )
    host: str = Field(
        pattern=_HOST, description="an address, a host name, or 'here' for this machine"
    )
    address: str | None = Field(
        default=None, pattern=_HOST, description="the address at which the other machines reach it"
    )
    port: int = Field(default=22, ge=1, le=65535, description="a port number, 1 to 65535")
    user: str | None = Field(default=None, pattern=_USER, description="a user's name")
    key: FilePath | None = Field(default=None, description="the path of a private key")
    password: Annotated[
        Credential | None, BeforeValidator(read_credential), PlainSerializer(str)
    ] = Field(default=None, description="env:NAME, key:PATH, agent or prompt")
    jump: str | None = Field(
        default=None,
        pattern=_JUMP,
        description="the name of another machine, or [user@]host[:port]",
    )
    folder: FilePath | None = Field(
        default=None, description="the path of the folder for Phalanx's files on that machine"
    )
    python: FilePath = Field(default="python3", description="the path or name of a Python")
    gpus: int = Field(default=0, ge=0, le=1024, description="a whole number, 0 or more")
    cpu_workers: int = Field(default=0, ge=0, le=1024, description="a whole number, 0 or more")
    """Workers that compute on the cores of a machine with GPUs, beside those on its GPUs."""
    cores: int | None = Field(default=None, ge=1, le=65536, description="a whole number, 1 or more")
    memory: Annotated[int | None, BeforeValidator(read_size)] = Field(
        default=None, gt=0, description="a size with its unit, such as 16GB or 16GiB"
    )
    watts: float | None = Field(default=None, ge=0, description="a number, 0 or more")
    price_per_hour: float | None = Field(default=None, ge=0, description="a number, 0 or more")
    energy_efficient: bool = Field(default=False, description="yes or no")
    data: FilePath | None = Field(default=None, description="the path of the data on that machine")
    host_key: str | None = Field(
        default=None,
        pattern=_FINGERPRINT,
        description="a fingerprint, SHA256: and 43 characters, as ssh-keygen -lf prints it",
    )
    speed: float | None = Field(
        default=None, gt=0, description="a number above 0, relative to the others"
    )
    emulated: bool = Field(default=False, description="yes or no")
    tls: bool = Field(default=False, description="yes or no")
    """Whether connections between workers are encrypted: for all machines, if set for any."""
    ship_limit: Annotated[int | None, BeforeValidator(read_size)] = Field(
        default=None, gt=0, description="a size with its unit, such as 500MB"
    )
    """The largest project folder that is sent; the largest limit counts for all machines."""
    follow_links: bool = Field(default=False, description="yes or no")
    """Whether links that lead out of the project are sent as files: to all, if set for any."""
    cpu_ids: tuple[int, ...] = Field(
        default=(), description="the cores that may be used, by number"
    )
    """Known for this machine only; siblings of one physical core are next to each other."""
    real_gpus: int | None = Field(default=None, exclude=True, repr=False)
    """GPUs that were found; workers of an emulated machine's other GPUs compute on cores."""
    via: Machine | None = Field(default=None, exclude=True, repr=False)
    """The jump host that ``jump`` names in the blueprint, as a machine."""
    known_keys: str | None = Field(default=None, exclude=True, repr=False)
    """The pool's file of host keys, beside its blueprint."""

    @property
    def is_here(self) -> bool:
        return self.host == HERE

    @property
    def interpreter(self) -> str:
        """The Python that the blueprint names; by default, on this machine, the running one."""
        named = "python" in self.model_fields_set or not self.is_here
        return self.python if named else sys.executable

    @property
    def endpoint(self) -> str:
        """The address of SSH on this machine, as people read it."""
        return self.host if self.is_here or self.port == 22 else f"{self.host}:{self.port}"

    @property
    def label(self) -> str:
        """Name and address, as people read them."""
        return self.name if self.name == self.endpoint else f"{self.name} ({self.endpoint})"

    @property
    def inline_password(self) -> SecretStr | None:
        return self.password.secret if self.password else None

    @property
    def asks_for_password(self) -> bool:
        """Whether a password has to be typed to log in, also one of the jump host."""
        own = self.password is not None and self.password.kind == "prompt" and not self.is_here
        return own or (self.via is not None and self.via.asks_for_password)


def read_jump(text: str) -> tuple[str | None, str, int]:
    """Return user, host and port of a jump host that is no machine of the pool."""
    found = re.fullmatch(_JUMP, text)
    if found is None or not 1 <= int(found["port"] or 22) <= 65535:
        raise ValueError("not a jump host")
    return found["user"], found["host"], int(found["port"] or 22)


MEASURED = frozenset({"name", "cpu_ids", "real_gpus", "via", "known_keys"})
FILE_FIELDS = tuple(f for f in Machine.model_fields if f not in MEASURED)
"""The fields of a machine that a blueprint may give."""


class Pool(BaseModel):
    """The machines that exist, and the source of their list."""

    model_config = ConfigDict(frozen=True)

    machines: tuple[Machine, ...]
    source: str
    warnings: tuple[str, ...] = ()

    @property
    def tls(self) -> bool:
        """Whether connections between the machines are encrypted."""
        return any(machine.tls for machine in self.machines)

    @property
    def ship_limit(self) -> int | None:
        return max((m.ship_limit for m in self.machines if m.ship_limit), default=None)

    @property
    def follow_links(self) -> bool:
        return any(machine.follow_links for machine in self.machines)
