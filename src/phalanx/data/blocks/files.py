"""Finds data files, on this machine or behind a URL of ``fsspec``, and reads ranges of bytes.

Reading from elsewhere fails now and then for a moment. That is tried again here, so that readers of
formats see bytes or one error.
"""

from __future__ import annotations

import errno
import glob
import importlib
import io
import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from phalanx.core.errors import InputError

RETRIES = 5
FIRST_WAIT = 0.2
"""Seconds before the first retry; each wait is twice the one before."""
BUFFER = 1 << 20
LOCAL = "file://"
PERMANENT = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
PERMANENT_NUMBERS = (errno.EINVAL, errno.ENOSYS)
LATER = (408, 425, 429)
"""HTTP statuses of the 4xx class after which the client should try again."""
NETWORK_PACKAGES = ("aiobotocore", "aiohttp", "botocore", "gcsfs", "http", "requests", "urllib3")
"""Packages for remote files; most of their exceptions are no ``OSError``."""
T = TypeVar("T")


def package(name: str, purpose: str) -> Any:
    """An optional package, or an :class:`InputError` that says how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        root = name.partition(".")[0]
        install = "Run: pip install 'phalanx-train[data]'."
        raise InputError(f"{purpose} need the package {root}: {error}", install) from error


def find_files(url: str, suffixes: tuple[str, ...]) -> list[str]:
    """The files at ``url``: one file, all of a folder with these suffixes, or those of a glob."""
    found = _find_remote(url, suffixes) if is_remote(url) else _find_local(url, suffixes)
    if not found:
        raise InputError(
            f"there is no file {url}, and no folder with files that end in {', '.join(suffixes)}",
            "Give a file, a folder (subfolders are not searched), or a glob such as 'FOLDER/**/*'.",
        )
    return sorted(found)


def is_remote(source: str) -> bool:
    return "://" in source and not source.startswith(LOCAL)


def size_of(source: str) -> int:
    if not is_remote(source):
        return _retried(source, "size", lambda: _local(source).stat().st_size)
    files, path = _system(source)
    size = _retried(source, "size", lambda: files.info(path).get("size"))
    if size is None:
        raise InputError(
            f"cannot read {source}: its server does not report the size",
            "Copy the file to a local disk, or to a server that does.",
        )
    return int(size)


def read_range(source: str, start: int, length: int) -> bytes:
    """Exactly ``length`` bytes from ``start`` on; raises an :class:`InputError` otherwise."""
    if length <= 0:
        return b""
    where = f"byte {start:,}"
    if not is_remote(source):
        return _retried(source, where, lambda: _read_local(source, start, length))
    files, path = _system(source)
    return _retried(source, where, lambda: _read_remote(files, path, start, length))


def open_file(source: str) -> BinaryIO:
    """Opens a file for readers that seek by themselves; remote reads are tried again as well."""
    if is_remote(source):
        return cast(BinaryIO, io.BufferedReader(_RangeFile(source), BUFFER))
    return _retried(source, "start", lambda: _local(source).open("rb"))


class _RangeFile(io.RawIOBase):
    """A file elsewhere, each read of which is one of :func:`read_range`."""

    def __init__(self, source: str) -> None:
        self._source, self._size, self._at = source, size_of(source), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError(f"negative seek position {base + offset}")
        self._at = base + offset
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        data = read_range(self._source, self._at, min(len(view), self._size - self._at))
        view[: len(data)] = data
        self._at += len(data)
        return len(data)


def _find_local(url: str, suffixes: tuple[str, ...]) -> list[str]:
    path = _local(url)
    if path.is_file():
        return [str(path)]
    if path.is_dir():
        inside = _retried(url, "list of files", lambda: list(path.iterdir()))
        found = [str(p) for p in inside if _wanted(p.name, suffixes) and p.is_file()]
        folders = [p.name for p in inside if p.is_dir() and not p.name.startswith((".", "_"))]
        if found and folders:
            raise InputError(
                f"{url} has files, and folders such as {folders[0]}, whose files are not read",
                f"Say which files: '{url}/*{suffixes[0]}' or '{url}/**/*{suffixes[0]}'.",
            )
        return found
    # A glob decides by itself which files are meant: records often have names without a suffix.
    named = map(Path, glob.glob(str(path), recursive=True))  # noqa: PTH207  (may be absolute)
    return [str(p) for p in named if _wanted(p.name, ("",)) and p.is_file()]


def _find_remote(url: str, suffixes: tuple[str, ...]) -> list[str]:
    files, path = _system(url)
    files.invalidate_cache()  # else a file that has come since the last look is not seen
    try:
        kind = _retried(url, "file or folder", lambda: files.info(path)["type"])
    except InputError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            raise
        kind = "glob" if glob.has_magic(path) else "none"
    if kind == "file":
        return [url]
    if kind == "none":
        return []
    if kind == "glob":
        suffixes = ("",)
        listed = _retried(url, "list of files", lambda: files.glob(path, detail=True).values())
    else:
        listed = _retried(url, "list of files", lambda: files.ls(path, detail=True))
    names = [entry["name"] for entry in listed if entry["type"] == "file"]
    wanted = [name for name in names if _wanted(name.rpartition("/")[2], suffixes)]
    before, found, after = url.rpartition(path)  # a server or an archive is in no name
    if not found:
        return [str(files.unstrip_protocol(name)) for name in wanted]
    return [f"{before}{name}{after.lstrip('/')}" for name in wanted]


def _wanted(name: str, suffixes: tuple[str, ...]) -> bool:
    """Spark leaves ``_SUCCESS`` and ``.part.crc`` beside its files."""
    shards = any(f"{suffix}-" in name for suffix in suffixes if suffix)  # .tfrecord-00001-of-00010
    wanted = name.removesuffix(".gz").endswith(suffixes) or shards
    return wanted and bool(name) and not name.startswith((".", "_"))


def _local(source: str) -> Path:
    return Path(source.removeprefix(LOCAL)).expanduser()


def _read_local(source: str, start: int, length: int) -> bytes:
    with _local(source).open("rb") as file:
        file.seek(start)
        data = file.read(length)
    if len(data) < length:
        raise InputError(
            f"{source} ends at byte {start + len(data):,}, before byte {start + length:,}",
            "Copy or write the file again, and do not change it while it is read.",
        )
    return data


def _read_remote(files: Any, path: str, start: int, length: int) -> bytes:
    data = cast(bytes, files.cat_file(path, start=start, end=start + length))
    if len(data) > length:
        raise InputError(
            f"cannot read {path}: its server ignores range requests and sends all of it",
            "Copy the file to a local disk, or to a server that answers range requests.",
        )
    if len(data) < length:
        raise EOFError(f"only {len(data):,} of {length:,} bytes arrived")
    return data


def _system(url: str) -> tuple[Any, str]:
    """The file system of a URL and the path there; ``fsspec`` caches file systems itself."""
    core = package("fsspec.core", f"URLs such as {url}")
    try:
        files, path = core.url_to_fs(url)
    except ImportError as error:  # which says what to install
        raise InputError(f"cannot read {url}: {error}", "Install that package with pip.") from error
    except Exception as error:  # of whatever package is behind this kind of URL
        failed = _failed(url, "", error)
        if url.startswith("hdfs://"):
            failed.remedy = "Use webhdfs://HOST:PORT/PATH, or install Java and Hadoop's libhdfs."
        raise failed from error
    return files, str(path)


def _retried(source: str, where: str, action: Callable[[], T]) -> T:
    wait = FIRST_WAIT
    for left in reversed(range(RETRIES + 1)):
        try:
            return action()
        except InputError:
            raise
        except Exception as error:  # each file system has its own
            if not _is_passing(error):
                raise _failed(source, "", error) from error
            if not left:
                tries = f" ({where}, tried {RETRIES + 1} times)"
                raise _failed(source, tries, error) from error
        # At random, so that workers whom a server rejected together do not all retry together.
        time.sleep(wait * random.uniform(0.5, 1.0))
        wait *= 2
    raise AssertionError("the last try returns or raises")


def _is_passing(error: Exception) -> bool:
    """Whether the same request may succeed a moment later."""
    if isinstance(error, PERMANENT) or getattr(error, "errno", None) in PERMANENT_NUMBERS:
        return False
    answer = getattr(error, "status" if hasattr(error, "status") else "code", None)
    if isinstance(answer, int) and 400 <= answer < 500:
        return answer in LATER
    if isinstance(error, OSError | EOFError):
        return True
    kind = type(error)
    return kind.__module__.partition(".")[0] in NETWORK_PACKAGES and "Cred" not in kind.__name__


def _failed(source: str, where: str, error: Exception) -> InputError:
    if isinstance(error, FileNotFoundError):
        return InputError(f"there is no file {source}", "Check the path.")
    if isinstance(error, PermissionError):
        return InputError(f"cannot read {source}: {_cause(error)}", "Check its permissions.")
    remedy = "Check the path, the network and the credentials."
    return InputError(f"cannot read {source}{where}: {_cause(error)}", remedy)


def _cause(error: Exception) -> str:
    words = " ".join(str(error).split())
    if isinstance(error, OSError) and error.strerror:
        words = " ".join(str(error.strerror).split())
    return words[:300] or type(error).__name__
