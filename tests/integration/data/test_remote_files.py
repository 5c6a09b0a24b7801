"""Files behind S3 and HTTP, for real: through a proxy that fails, cuts, and shortens answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch

from phalanx.core.errors import InputError
from phalanx.data.blocks import files
from phalanx.data.blocks.files import find_files, open_file, read_range, size_of
from phalanx.data.blocks.tfrecord import TFRecordReader
from phalanx.data.blocks.tfrecord_writer import write_tfrecord

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

CONTENT = bytes(range(251)) * 1000
COLUMNS = {"x": torch.rand(500, 30), "y": torch.arange(500)}
ERROR = b"<Error><Code>InternalError</Code><Message>broken for a moment</Message></Error>"


class _Proxy(BaseHTTPRequestHandler):
    """Hands requests on. ``troubles``: what becomes of the next requests for objects."""

    protocol_version = "HTTP/1.1"
    target: tuple[str, int]
    troubles: list[str]
    seen: list[str]

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def _answer(self) -> None:
        listing = "list-type" in self.path
        self.seen.append(self.path)
        trouble = self.troubles.pop(0) if self.troubles and not listing else ""
        if trouble == "500":
            head = f"HTTP/1.1 500 Internal Server Error\r\nContent-Length: {len(ERROR)}\r\n\r\n"
            self._end(head.encode() + ERROR)
            return
        head, body = self._asked()
        if trouble == "cut":  # within the body: the client waits for the rest, which never comes
            body = body[: len(body) // 2]
        if trouble == "gone":
            head, body = b"", b""
        self._end(head + body)

    def _asked(self) -> tuple[bytes, bytes]:
        lines = [self.requestline, *(f"{name}: {value}" for name, value in self.headers.items())]
        lines = [line for line in lines if not line.lower().startswith("connection:")]
        with socket.create_connection(self.target, timeout=20) as upstream:
            upstream.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode())
            answer = b"".join(iter(partial(upstream.recv, 1 << 16), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        return head + b"\r\n\r\n", body

    def _end(self, answer: bytes) -> None:
        self.wfile.write(answer)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Quiet(SimpleHTTPRequestHandler):
    """Files of a folder, by ranges, which the standard library's own server does not know."""

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        wanted = self.headers.get("Range")
        if wanted is None or not path.is_file():
            super().do_GET()
            return
        data = path.read_bytes()
        first, last = (int(part) for part in wanted.removeprefix("bytes=").split("-"))
        part = data[first : last + 1]
        self.send_response(206)
        self.send_header("Content-Length", str(len(part)))
        self.send_header("Content-Range", f"bytes {first}-{first + len(part) - 1}/{len(data)}")
        self.end_headers()
        self.wfile.write(part)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _serve(handler: Any) -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield int(server.server_address[1])
    server.shutdown()
    server.server_close()
    thread.join()


def _proxy(port: int) -> Any:
    about = {"target": ("127.0.0.1", port), "troubles": [], "seen": []}
    return type("_ProxyHere", (_Proxy,), about)


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "FIRST_WAIT", 0.01)


@pytest.fixture
def records(tmp_path: Path) -> Path:
    (tmp_path / "served").mkdir()
    path = tmp_path / "served" / "rows.tfrecord"
    write_tfrecord(path, COLUMNS)
    (tmp_path / "served" / "a.bin").write_bytes(CONTENT)
    return path


@pytest.fixture
def proxy(records: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """S3 with the bucket ``bucket``, asked without the retries of its own client."""
    fsspec = pytest.importorskip("fsspec")
    s3fs = pytest.importorskip("s3fs")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    for name, value in (
        ("ACCESS_KEY_ID", "a"),
        ("SECRET_ACCESS_KEY", "b"),
        ("REGION", "us-east-1"),
    ):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    server.start()
    port = server.get_host_and_port()[1]
    handler = _proxy(port)
    direct = s3fs.S3FileSystem(endpoint_url=f"http://127.0.0.1:{port}", skip_instance_cache=True)
    direct.makedirs("bucket", exist_ok=True)  # servers of one process share their buckets
    for name in ("rows.tfrecord", "a.bin"):
        direct.pipe_file(f"bucket/data/{name}", (records.parent / name).read_bytes())
    serving = _serve(handler)
    about = {
        "endpoint_url": f"http://127.0.0.1:{next(serving)}",
        "config_kwargs": {"retries": {"total_max_attempts": 1}, "read_timeout": 10},
    }
    monkeypatch.setitem(fsspec.config.conf, "s3", about)
    yield handler
    next(serving, None)
    server.stop()


def _same(url: str) -> None:
    reader = TFRecordReader([url], block_rows=100)
    found = [reader.read(block) for block in reader.blocks]
    for name, column in COLUMNS.items():
        assert torch.equal(torch.cat([part[name] for part in found]), column)


def test_files_of_s3_are_found_and_read(proxy: Any) -> None:
    assert find_files("s3://bucket/data", (".tfrecord",)) == ["s3://bucket/data/rows.tfrecord"]
    assert find_files("s3://bucket/data/*", ()) == [
        "s3://bucket/data/a.bin",
        "s3://bucket/data/rows.tfrecord",
    ]
    _same("s3://bucket/data/rows.tfrecord")
    with pytest.raises(InputError, match=r"no \.bin files"):
        find_files("s3://bucket/none", (".bin",))


@pytest.mark.parametrize("trouble", ["500", "cut", "gone"])
def test_trouble_with_s3_that_passes_is_not_seen(proxy: Any, trouble: str) -> None:
    source = "s3://bucket/data/a.bin"
    assert size_of(source) == len(CONTENT)
    proxy.troubles += [trouble] * 3
    assert read_range(source, 1000, 90_000) == CONTENT[1000:91_000]
    assert proxy.troubles == []
    with open_file(source) as file:
        proxy.troubles += [trouble]
        file.seek(200_000)
        assert file.read(30_000) == CONTENT[200_000:230_000]
    assert proxy.troubles == []


def test_records_of_s3_come_whole_through_trouble(proxy: Any) -> None:
    proxy.troubles += ["500", "", "cut", "gone", "", "500", "cut"]
    _same("s3://bucket/data/rows.tfrecord")
    assert proxy.troubles == []


def test_trouble_with_s3_that_lasts_is_one_line(proxy: Any) -> None:
    source = "s3://bucket/data/a.bin"
    size_of(source)
    proxy.troubles += ["500"] * 6
    with pytest.raises(InputError, match=r"a\.bin \(byte 70, tried 6 times\): .") as caught:
        read_range(source, 70, 10)
    assert "\n" not in caught.value.cause
    assert proxy.troubles == []


def test_what_s3_does_not_have_is_not_asked_for_again(proxy: Any) -> None:
    proxy.seen.clear()
    with pytest.raises(InputError, match="there is no file"):
        read_range("s3://bucket/data/none", 0, 10)
    assert len(proxy.seen) == 1


def test_files_of_http_are_read_through_trouble(records: Path) -> None:
    pytest.importorskip("aiohttp")
    serving = _serve(partial(_Quiet, directory=str(records.parent)))
    handler = _proxy(next(serving))
    before = _serve(handler)
    url = f"http://127.0.0.1:{next(before)}"
    assert find_files(f"{url}/a.bin", (".x",)) == [f"{url}/a.bin"]
    handler.troubles += ["500", "cut", "gone"]
    assert read_range(f"{url}/a.bin", 1000, 90_000) == CONTENT[1000:91_000]
    _same(f"{url}/rows.tfrecord")
    with pytest.raises(InputError, match="there is no file"):
        read_range(f"{url}/none", 0, 10)
    next(before, None)
    next(serving, None)
