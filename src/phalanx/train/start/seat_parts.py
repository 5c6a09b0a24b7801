"""What every launcher's variables have to say about a seat: which process, and where all meet."""

from __future__ import annotations

import re
from collections.abc import Mapping

from phalanx.core import hosts_settings as hosts
from phalanx.core import words
from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import slug

MOST_PROCESSES = 1 << 16
_NAME = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9._:%-]*")


class Variables:
    """The environment variables of a process, also read as numbers; an empty one counts as not
    set, and a wrong one is one clear line that names it."""

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
                f"{name} must be a whole number, {wanted}, not '{words.short(text)}'",
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


def numbers_of(found: Variables, process: str, processes: str) -> tuple[int, int]:
    """This process's number and how many there are, which have to fit."""
    count = found.needed(processes, beside=process, least=1, most=MOST_PROCESSES)
    number = found.needed(process, beside=processes)
    if number >= count:
        raise InputError(
            f"{process} is {number}, but {processes} is {count}",
            f"Count processes from 0 to {count - 1}.",
        )
    return number, count


def meeting_of(found: Variables, address: str, port: int | None, wanted: str) -> tuple[str, int]:
    """Where process 0 is met: ``PHALANX_MEET`` and ``PHALANX_PORT`` win over the launcher."""
    told = found.text(hosts.MEET)
    if told:
        address, told_port = _split(told)
        port = told_port or port
    port = found.number(hosts.PORT, least=1, most=65535) or port
    if not address or port is None:
        missing = hosts.PORT if address and told else hosts.MEET
        raise InputError(
            f"{missing} is not set: the address of process 0 is unknown",
            f"Set {hosts.MEET}: {wanted}",
        )
    if not _NAME.fullmatch(address):
        raise InputError(f"process 0 cannot be at '{address}'", f"Set {hosts.MEET}: {wanted}")
    return address, port


def _split(text: str) -> tuple[str, int | None]:
    """``HOST``, ``HOST:PORT``, ``[ADDRESS]:PORT``, or an IPv6 address alone."""
    bracketed = re.fullmatch(r"\[([^\[\]]+)\](?::(.+))?", text)
    if bracketed:
        host, port = bracketed[1], bracketed[2] or ""
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    else:
        return text, None
    if not port:
        return host, None
    return host, Variables({hosts.MEET: port}).number(hosts.MEET, least=1, most=65535)


def run_word(found: Variables, otherwise: str) -> str:
    """A word that may be part of a folder's name."""
    return slug(found.text(hosts.RUN_ID) or otherwise)[:100]
