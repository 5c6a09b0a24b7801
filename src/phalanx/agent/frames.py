"""The frames between controller and agent: two lengths, a JSON object, and bytes. Checks fields."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

LENGTHS = struct.Struct("!II")
MOST_HEADER = 1 << 20
MOST_PAYLOAD = 4 << 20
MOST_NAME = 4096


class RequestProblem(Exception):  # noqa: N818  (the word on the wire)
    """A request cannot be answered: the cause, and what to do about it."""

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy


class InvalidFrame(Exception):  # noqa: N818  (what came)
    """What came is not a frame of Phalanx."""


def pack(header: dict[str, Any], payload: bytes = b"") -> bytes:
    words = json.dumps(header, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")
    if len(words) > MOST_HEADER or len(payload) > MOST_PAYLOAD:
        raise RequestProblem("an answer is too large for one frame")
    return LENGTHS.pack(len(words), len(payload)) + words + payload


def unpack(read: Callable[[int], bytes]) -> tuple[dict[str, Any], bytes]:
    """Read the next frame; ``read`` returns exactly as many bytes as it is asked for."""
    header_length, payload_length = LENGTHS.unpack(read(LENGTHS.size))
    if not 2 <= header_length <= MOST_HEADER or payload_length > MOST_PAYLOAD:
        raise InvalidFrame("a frame is too long")
    try:
        header = json.loads(read(header_length).decode("utf-8"))
    except (ValueError, RecursionError):
        raise InvalidFrame("a frame is not JSON") from None
    if not isinstance(header, dict):
        raise InvalidFrame("a frame is not a JSON object")
    return header, read(payload_length)


def field(header: dict[str, Any], name: str, kind: Any, otherwise: Any = None) -> Any:
    """Return a field of a request, if it is of this kind; ``otherwise`` if it is left out."""
    value = header.get(name)
    if value is None:
        value = otherwise
    if not isinstance(value, kind) or (isinstance(value, bool) and kind in (int, (int, float))):
        raise RequestProblem(f"invalid '{name}' in the request {header.get('ask')}")
    return value


def inside(folder: Path, name: Any) -> Path:
    """Return ``folder / name``, if ``name`` is relative and stays inside the folder."""
    plain = isinstance(name, str) and len(name) <= MOST_NAME and "\0" not in name
    parts = PurePosixPath(name).parts if plain else ()
    if not parts or parts[0].startswith("/") or ".." in parts:
        raise RequestProblem(f"unsafe path: {str(name)[:100]!r}")
    return folder.joinpath(*parts)


def is_run(name: str) -> bool:
    """Whether this can be the id of a run: one plain part of a path."""
    return 0 < len(name) <= 255 and name[0] != "." and "/" not in name and name.isprintable()
