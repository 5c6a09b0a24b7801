"""Downloads: from several homes, over HTTPS only, with a limit, and never half a file."""

from __future__ import annotations

import contextlib
import fcntl
import http.client
import secrets
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, BinaryIO

from phalanx.core.errors import InputError

TIMEOUT_SECONDS = 30.0
CHUNK = 1 << 18
LOCK = ".lock"
PART = ".part"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


class FetchError(Exception):
    """One home could not give the file; the next one may."""


@contextlib.contextmanager
def replace_with(target: Path) -> Iterator[BinaryIO]:
    """A file that becomes ``target`` when the block ends well, and leaves nothing otherwise."""
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}{PART}")
    try:
        with part.open("xb") as file:
            yield file
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """One worker of this machine at a time; the kernel frees the lock of a dead one."""
    with (folder / LOCK).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True)
class Order:
    """What to download for one data set, and from where."""

    name: str
    homes: Sequence[str]
    limits: Mapping[str, int]
    """The files, and the most bytes that each may have."""
    makes: Sequence[str] = ()
    """What is unpacked from them, when that is what the data set needs."""
    accept: Callable[[Path], None] = field(default=lambda path: None)
    """Raises :class:`InputError` for a file that is not the right one; the next home is tried."""

    @property
    def needed(self) -> Sequence[str]:
        return self.makes or list(self.limits)


def fetch_files(order: Order, folder: Path) -> None:
    """Download into ``folder`` what is not there; other workers wait and find it done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder):
            if all((folder / file).exists() for file in order.needed):
                return
            for file in order.limits:
                if not (folder / file).exists():
                    _from_any(order, folder / file)
    except OSError as error:
        raise InputError(
            f"cannot write to the data folder {folder}: {error.strerror}",
            "Set PHALANX_DATA to a folder you may write to.",
        ) from error


def _from_any(order: Order, target: Path) -> None:
    for left_by_a_dead_worker in target.parent.glob(f".{target.name}.*{PART}"):
        left_by_a_dead_worker.unlink(missing_ok=True)
    reasons = []
    for home in order.homes:
        try:
            download(urllib.parse.urljoin(home, target.name), target, order.limits[target.name])
            return order.accept(target)
        except FetchError as error:
            reasons.append(f"{urllib.parse.urlsplit(home).hostname}: {error}")
        except InputError as error:
            target.unlink()
            reasons.append(f"{urllib.parse.urlsplit(home).hostname}: {error.cause}")
    raise InputError(
        f"cannot download {target.name} of '{order.name}' ({'; '.join(reasons)})",
        f"Put these files into {target.parent}: {', '.join(order.needed)}",
    )


def download(url: str, target: Path, limit: int) -> None:
    """Fetch ``url`` into ``target``; :class:`FetchError` when this home cannot give it."""
    try:
        with _open(url) as answer:
            announced = int(answer.headers.get("Content-Length") or -1)
            if announced > limit:
                raise FetchError(f"the file is larger than {limit:,} bytes")
            with replace_with(target) as file:
                show = _Progress(target.name, announced)
                received = 0
                while chunk := answer.read(CHUNK):
                    received += len(chunk)
                    if received > limit:
                        raise FetchError(f"the file is larger than {limit:,} bytes")
                    file.write(chunk)
                    show.at(received)
                show.end()
                if announced >= 0 and received != announced:
                    raise FetchError("the connection ended early")
    except urllib.error.HTTPError as error:
        raise FetchError(f"HTTP {error.code}") from error
    except urllib.error.URLError as error:
        raise FetchError(str(error.reason)) from error
    except (TimeoutError, ConnectionError, http.client.HTTPException, ValueError) as error:
        raise FetchError(str(error) or type(error).__name__) from error


class _SecureRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect may not leave HTTPS."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        _refuse_insecure(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _refuse_insecure(url: str) -> None:
    parts = urllib.parse.urlsplit(url)
    if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in LOOPBACK):
        raise FetchError("the address is not HTTPS")


def _open(url: str) -> http.client.HTTPResponse:
    _refuse_insecure(url)
    opener = urllib.request.build_opener(_SecureRedirects)
    request = urllib.request.Request(url, headers={"User-Agent": "phalanx"})
    answer: http.client.HTTPResponse = opener.open(request, timeout=TIMEOUT_SECONDS)
    return answer


class _Progress:
    """One line on stderr: rewritten on a terminal, printed once elsewhere."""

    def __init__(self, name: str, total: int) -> None:
        self.name = name
        self.total = f" of {total / 1e6:.1f}" if total >= 0 else ""
        self.live = sys.stderr.isatty()
        if not self.live:
            print(f"downloading {name}", file=sys.stderr, flush=True)

    def at(self, received: int) -> None:
        if self.live:
            line = f"\rdownloading {self.name}: {received / 1e6:.1f}{self.total} MB"
            print(line, end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        if self.live:
            print(file=sys.stderr)
