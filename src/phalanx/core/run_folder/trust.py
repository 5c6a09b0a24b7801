"""Which run folders this user made: their launch records are signed with this user's key.

``launch.json`` and ``plan.json`` name the blueprint, the machines, the script and the Python that
verbs use later. Another user's folder could name anything, so nothing in it is used before the
signature is verified. The signature covers the folder's path as well: a copy of a record in another
folder is not valid.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from phalanx.core.errors import InputError
from phalanx.core.files import read_bounded, write_whole
from phalanx.core.run_folder.run_paths import RunPaths

KEY_BYTES = 32
_LARGEST_SIGNATURE = 1 << 16
_LABEL = b"phalanx run folder 1"


def key_file() -> Path:
    """Return the path of this user's key, in the folder for state (``$XDG_STATE_HOME``)."""
    state = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "phalanx" / "run-folders.key"


def write_launch(paths: RunPaths, text: str) -> None:
    """Write ``launch.json``, signed together with the existing ``plan.json``.

    Nothing else may write ``launch.json``. If no key can be stored, the record is not signed.
    """
    data = text.encode()
    key = _key(make=True)
    if key is not None:
        # Written first, beside the earlier codes, so that no record is ever without its code.
        known = [*_codes(paths), _code(key, paths, data)]
        write_whole(paths.signature, "".join(f"{code}\n" for code in dict.fromkeys(known)))
    write_whole(paths.launch, data)


def is_own(paths: RunPaths) -> bool:
    """Whether this user wrote launch record and plan, in this folder, and they are unchanged."""
    try:
        data = read_bounded(paths.launch)
        key = _key(make=False)
    except OSError:
        return False
    if key is None:
        return False
    code = _code(key, paths, data)
    return any(hmac.compare_digest(code, known) for known in _codes(paths))


def refuse_foreign(paths: RunPaths, would: str, remedy: str) -> None:
    """Raise an error unless this user made the folder; ``would``: what the verb would do."""
    if is_own(paths):
        return
    raise InputError(
        f"cannot verify that you started '{paths.id}' here (another user may have started it, "
        f"or its folder was moved, or its launch.json was changed): continuing would {would}",
        remedy,
    )


def user_secret(purpose: str) -> bytes | None:
    """Return a secret of this user's for ``purpose``, the same each time; ``None`` if no key can
    be stored."""
    key = _key(make=True)
    label = b"phalanx secret 1 " + purpose.encode()
    return None if key is None else hmac.new(key, label, hashlib.sha256).digest()


def _code(key: bytes, paths: RunPaths, launch: bytes) -> str:
    try:
        plan = read_bounded(paths.plan)
    except FileNotFoundError:
        plan = b""
    mac = hmac.new(key, _LABEL, hashlib.sha256)
    for part in (os.fsencode(os.path.realpath(paths.folder)), plan, launch):
        mac.update(len(part).to_bytes(8, "big") + part)
    return mac.hexdigest()


def _codes(paths: RunPaths) -> list[str]:
    try:
        text = read_bounded(paths.signature, _LARGEST_SIGNATURE).decode("ascii")
    except (OSError, UnicodeDecodeError, InputError):
        return []
    return text.split()


def _key(make: bool) -> bytes | None:
    """Return this user's key; ``None`` if there is none (or, with ``make``, none can be kept)."""
    try:
        path = key_file()
        with suppress(FileNotFoundError):
            return _read_key(path)
        if not make:
            return None
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Linked when complete; of two processes that make a key at once, the first one's stays.
        scratch = path.with_name(f".{secrets.token_hex(8)}.part")
        file = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(file, secrets.token_bytes(KEY_BYTES))
            with suppress(FileExistsError):
                os.link(scratch, path)
        finally:
            os.close(file)
            scratch.unlink()
        return _read_key(path)
    except (OSError, RuntimeError):
        return None


def _read_key(path: Path) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        about = os.fstat(file)
        key = os.read(file, KEY_BYTES + 1) if stat.S_ISREG(about.st_mode) else b""
    finally:
        os.close(file)
    if about.st_uid != os.geteuid() or about.st_mode & 0o077 or len(key) != KEY_BYTES:
        raise InputError(
            f"{path}, your key for run folders, is damaged or accessible to other users",
            f"Remove it (rm {path}): others may have created run folders in your name.",
        )
    return key
