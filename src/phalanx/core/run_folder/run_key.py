"""The key of one run: only processes that have it belong to the run."""

from __future__ import annotations

import hmac
import os
import resource
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from phalanx.core.errors import InputError

KEY_VARIABLE = "PHALANX_KEY"
KEY_FILE_VARIABLE = "PHALANX_KEY_FILE"
KEY_BYTES = 32


class RunKey:
    """32 random bytes that all members of a run share. Never printed."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if len(secret) != KEY_BYTES:
            raise ValueError(f"a run key has {KEY_BYTES} bytes")
        self._secret = bytes(secret)
        without_core_dumps()

    @staticmethod
    def new() -> RunKey:
        """Return a new random key."""
        return RunKey(secrets.token_bytes(KEY_BYTES))

    @staticmethod
    def from_text(text: str) -> RunKey:
        """Return the key that has this ``text()``."""
        digits = text.strip()
        try:
            if len(digits) != 2 * KEY_BYTES or not digits.isalnum():
                raise ValueError
            return RunKey(bytes.fromhex(digits))
        except ValueError:
            # The text is not shown: it may be most of a real key.
            raise InputError(
                f"the run's key must be {2 * KEY_BYTES} hexadecimal digits",
                "Create one: openssl rand -hex 32",
            ) from None

    def text(self) -> str:
        """Return the key as 64 hexadecimal digits, which must stay secret."""
        return self._secret.hex()

    def secret(self) -> bytes:
        """Return the key's bytes, whose possession the two sides of a connection prove."""
        return self._secret

    def __repr__(self) -> str:
        return "RunKey(hidden)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RunKey) and hmac.compare_digest(self._secret, other._secret)

    def __hash__(self) -> int:
        return hash(self._secret)

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("a run key cannot be pickled")


def without_core_dumps() -> None:
    """Turn off core dumps: a crash must not write the key in this process's memory to disk."""
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))


def key_from(variables: Mapping[str, str]) -> RunKey | None:
    """Return the key in ``PHALANX_KEY``, or in the file of ``PHALANX_KEY_FILE``, if any."""
    if text := variables.get(KEY_VARIABLE):
        return RunKey.from_text(text)
    if name := variables.get(KEY_FILE_VARIABLE):
        return RunKey.from_text(_read_private(Path(name)))
    return None


def _read_private(path: Path) -> str:
    try:
        # Not blocking, so that a pipe in the place of the file does not hang the command.
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise InputError(
            f"cannot read the run's key from {path}: {error.strerror}",
            f"Set {KEY_FILE_VARIABLE} to a file that only you can read.",
        ) from None
    try:
        # Checked on the open file: its name may point elsewhere a moment later.
        mode = os.fstat(file).st_mode
        if not stat.S_ISREG(mode):
            raise InputError(
                f"{path} is not a file", f"Set {KEY_FILE_VARIABLE} to the file with the key."
            )
        if mode & 0o077:
            raise InputError(
                f"other users can read or change {path}, which holds the run's key",
                f"Run: chmod 600 {path}",
            )
        return os.read(file, 4 * KEY_BYTES).decode("ascii", errors="replace")
    finally:
        os.close(file)
