"""Files of data: which there are, and how reading them goes on after a failure."""

from __future__ import annotations

import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.errors import InputError
from phalanx.data.blocks import files
from phalanx.data.blocks.files import find_files, open_file, read_range, size_of

CONTENT = bytes(range(256)) * 8


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FIRST_WAIT", 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    names = ("b.rec", "a.rec", "c.txt", "_d.rec", ".e.rec", "_SUCCESS", "part-0")
    for name in names:
        (tmp_path / name).write_bytes(CONTENT)
    return tmp_path


def _names(found: list[str]) -> list[str]:
    return [Path(one).name for one in found]


def test_folders_beside_files_are_not_left_out_in_silence(folder: Path) -> None:
    (folder / "_temporary").mkdir()
    assert _names(find_files(str(folder), (".rec",))) == ["a.rec", "b.rec"]
    (folder / "inner.rec").mkdir()
    (folder / "inner.rec" / "f.rec").write_bytes(CONTENT)
    with pytest.raises(InputError, match=r"folders such as inner\.rec"):
        find_files(str(folder), (".rec",))
    found = find_files(f"{folder}/**/*.rec", (".rec",))
    assert _names(found) == ["a.rec", "b.rec", "f.rec"]


@pytest.mark.parametrize(
    ("asked", "suffixes", "names"),
    [
        ("", (".rec",), ["a.rec", "b.rec", "x.rec-00000-of-00001", "y.rec.gz"]),
        ("", (".txt",), ["c.txt"]),
        ("/part-0", (".rec",), ["part-0"]),
        ("/part-*", (".rec",), ["part-0"]),
        ("/**/*.rec", (".rec",), ["a.rec", "b.rec", "run[1].rec"]),
        ("/run[1].rec", (".rec",), ["run[1].rec"]),
    ],
)
def test_which_files_there_are(
    folder: Path, asked: str, suffixes: tuple[str, ...], names: list[str]
) -> None:
    """Of a folder those with a suffix, or shards or packed ones of that; else what is named."""
    for name in ("x.rec-00000-of-00001", "y.rec.gz"):
        (folder / name).write_bytes(CONTENT)
    if "[1]" in "".join(names):
        (folder / "run[1].rec").write_bytes(CONTENT)
    for begin in ("", "file://"):
        assert _names(find_files(f"{begin}{folder}{asked}", suffixes)) == names


@pytest.mark.parametrize("tail", ["none", "none/*.rec", ""])
def test_nothing_found_is_an_error(tmp_path: Path, tail: str) -> None:
    with pytest.raises(InputError, match=r"files that end in \.rec, \.r\b"):
        find_files(str(tmp_path / tail), (".rec", ".r"))


def test_local_files_need_no_fsspec(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("fsspec", "fsspec.core"):
        monkeypatch.setitem(sys.modules, name, None)
    source = find_files(f"{folder}/a.rec", (".rec",))[0]
    assert size_of(source) == len(CONTENT)
    assert read_range(source, 3, 5) == CONTENT[3:8]
    with pytest.raises(InputError, match="fsspec") as caught:
        find_files("s3://bucket/a", (".rec",))
    assert "pip install 'phalanx-train[data]'" in caught.value.remedy


def test_ranges_and_opened_files_of_this_machine(folder: Path) -> None:
    source = str(folder / "a.rec")
    assert read_range(source, 0, 0) == b""
    assert read_range(f"file://{source}", 250, 10) == CONTENT[250:260]
    with open_file(source) as file:
        file.seek(-4, io.SEEK_END)
        assert file.read() == CONTENT[-4:]


def test_a_file_that_ends_too_early_names_the_byte(folder: Path) -> None:
    with pytest.raises(InputError, match=r"a\.rec ends at byte 2,048, before byte 2,060"):
        read_range(str(folder / "a.rec"), 2040, 20)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    for call in (size_of, open_file, lambda source: read_range(source, 0, 1)):
        with pytest.raises(InputError, match="there is no file") as caught:
            call(str(tmp_path / "none"))
        assert "\n" not in caught.value.cause


class _AnswerError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__(f"answer {status}")
        self.status = status


_AnswerError.__module__ = "aiohttp.client_exceptions"


class _NoCredentialsError(Exception):
    pass


_NoCredentialsError.__module__ = "botocore.exceptions"


class _Flaky:
    """A file system that fails in the given ways, then answers."""

    def __init__(self, *failures: Exception | int) -> None:
        self.failures = list(failures)
        self.calls = 0

    def cat_file(self, path: str, start: int, end: int) -> bytes:
        self.calls += 1
        failure = self.failures.pop(0) if self.failures else None
        if isinstance(failure, Exception):
            raise failure
        return CONTENT[start : end + (failure or 0)]

    def info(self, path: str) -> dict[str, Any]:
        return {"size": len(CONTENT), "type": "file"}


def _use(flaky: _Flaky, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_system", lambda url: (flaky, url))


PASSING = [
    OSError(5, "input/output error"),
    ConnectionResetError("reset"),
    TimeoutError(),
    _AnswerError(503),
    _AnswerError(429),
    -2,  # a short read
]


@pytest.mark.parametrize("failure", PASSING, ids=repr)
def test_a_passing_failure_is_tried_again(
    failure: Exception | int, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaky = _Flaky(*[failure] * 5)
    _use(flaky, monkeypatch)
    assert read_range("s3://bucket/a", 10, 20) == CONTENT[10:30]
    assert flaky.calls == 6


def test_the_last_failure_names_the_file_the_byte_and_the_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flaky = _Flaky(*[_AnswerError(503)] * 5, OSError(5, "broken\npipe"))
    _use(flaky, monkeypatch)
    with pytest.raises(InputError) as caught:
        read_range("s3://bucket/a", 1010, 20)
    assert caught.value.cause == (
        "cannot read s3://bucket/a (byte 1,010, tried 6 times): broken pipe"
    )


LASTING = [
    (FileNotFoundError("a"), "there is no file s3://bucket/a"),
    (PermissionError("Access Denied"), "cannot read s3://bucket/a: Access Denied"),
    (OSError(22, "invalid range"), "invalid range"),
    (_AnswerError(403), "answer 403"),
    (_NoCredentialsError("no credentials"), "no credentials"),
    (7, "ignores range requests"),
]


@pytest.mark.parametrize(("failure", "words"), LASTING, ids=repr)
def test_a_lasting_failure_is_not_tried_again(
    failure: Exception | int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    flaky = _Flaky(failure)
    _use(flaky, monkeypatch)
    with pytest.raises(InputError, match=words):
        read_range("s3://bucket/a", 10, 20)
    assert flaky.calls == 1


def test_a_file_elsewhere_is_read_like_one_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BUFFER", 64)
    _use(_Flaky(TimeoutError()), monkeypatch)
    with open_file("s3://bucket/a") as file:
        assert file.read(10) == CONTENT[:10]
        assert file.seek(-5, io.SEEK_END) == len(CONTENT) - 5
        assert file.read() == CONTENT[-5:]
        file.seek(100)
        assert file.read(300) == CONTENT[100:400]
        assert file.tell() == 400
        file.seek(len(CONTENT) + 9)
        assert file.read(1) == b""


def test_urls_are_found_and_read_through_fsspec(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for name in ("b.rec", "a.rec", "_c.rec", "d.txt"):
        memory.pipe_file(f"/{tmp_path.name}/{name}", CONTENT)
    base = f"memory://{tmp_path.name}"
    assert _names(find_files(base, (".rec",))) == ["a.rec", "b.rec"]
    assert _names(find_files(f"{base}/*.txt", (".rec",))) == ["d.txt"]
    assert find_files(f"{base}/d.txt", (".rec",)) == [f"{base}/d.txt"]
    source = find_files(base, (".rec",))[0]
    assert source.startswith("memory://")
    assert size_of(source) == len(CONTENT)
    assert read_range(source, 5, 9) == CONTENT[5:14]
    assert read_range(f"simplecache::{source}", 5, 9) == CONTENT[5:14], "from a copy here"
    for missing in ("none", "*.none"):
        with pytest.raises(InputError, match=r"end in \.rec"):
            find_files(f"{base}/{missing}", (".rec",))


@pytest.mark.parametrize("pattern", ["inner", "inner/", "inner/*.rec", "**/*.rec"])
def test_files_found_inside_an_archive_are_read_there(tmp_path: Path, pattern: str) -> None:
    """The names that such a file system lists do not say where it is, as those of webhdfs://."""
    pytest.importorskip("fsspec")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        for name in ("inner/a.rec", "inner/b.rec", "inner/c.txt"):
            archive.writestr(name, CONTENT)
    found = find_files(f"zip://{pattern}::file://{tmp_path}/all.zip", (".rec",))
    assert found == [f"zip://inner/{name}.rec::file://{tmp_path}/all.zip" for name in "ab"]
    assert read_range(found[1], 3, 5) == CONTENT[3:8]


def test_hdfs_without_its_library_names_the_other_way() -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("fsspec")
    with pytest.raises(InputError, match="cannot read hdfs:") as caught:
        find_files("hdfs://127.0.0.1:1/x", (".rec",))
    assert caught.value.remedy.startswith("Use webhdfs://HOST:PORT/PATH")


def test_a_kind_of_url_that_is_not_known_is_an_error() -> None:
    with pytest.raises(InputError, match="nonsense"):
        find_files("nonsense://bucket/a", (".rec",))


def test_waits_double_and_are_jittered(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    monkeypatch.setattr(files, "FIRST_WAIT", 0.2)
    monkeypatch.setattr(files.time, "sleep", waits.append)
    _use(_Flaky(*[TimeoutError()] * 5), monkeypatch)
    read_range("s3://bucket/a", 10, 20)
    assert len(waits) == 5
    for number, wait in enumerate(waits):
        assert 0.1 * 2**number <= wait <= 0.2 * 2**number
