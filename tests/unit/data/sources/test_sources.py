"""Reading published files: the right ones are read, wrong ones are named."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import socket
import tarfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from phalanx.core.context import WorkerContext, enter
from phalanx.core.errors import InputError
from phalanx.core.registry import did_you_mean
from phalanx.core.settings import SETTINGS, RunSettings
from phalanx.data import load
from phalanx.data.fetch import FetchError, download
from phalanx.data.load import LOADED, SOURCES, data_folder
from phalanx.data.sources import cifar, idx, published
from phalanx.data.sources.published import Published, Read


def idx_bytes(array: np.ndarray) -> bytes:
    header = bytes((0, 0, 8, array.ndim)) + np.array(array.shape, ">u4").tobytes()
    return header + array.astype(np.uint8).tobytes()


def make_small(folder: Path, train: int = 5, test: int = 3) -> None:
    """A data set in the published format, but small, so that it needs 'unchecked'."""
    folder.mkdir(parents=True, exist_ok=True)
    for prefix, count in (("train", train), ("t10k", test)):
        images = np.arange(count * 784).reshape(count, 28, 28) % 256
        labels = np.arange(count) % 10
        (folder / f"{prefix}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx_bytes(images)))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(published.UNCHECKED_VARIABLE, "1")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Homes that nobody listens at: a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        home = f"http://127.0.0.1:{probe.getsockname()[1]}/"
    monkeypatch.setattr(idx, "KMNIST_HOMES", [home])
    monkeypatch.setattr(cifar, "HOMES", [home])


@pytest.fixture
def home(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder served over HTTP on this machine, and its address."""
    folder = tmp_path / "home"
    folder.mkdir()
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with serving(handler) as address:
        yield folder, address


@contextlib.contextmanager
def serving(handler: Any) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_digits_come_with_the_package_and_are_split_once_and_for_all() -> None:
    train, test = load("digits")
    assert train.x.shape == (1500, 1, 8, 8) and test.x.shape == (297, 1, 8, 8)
    assert train.x.dtype == torch.float32 and train.y.dtype == torch.int64
    assert float(train.x.min()) == 0 and float(train.x.max()) == 1
    assert sorted(train.y.unique().tolist()) == list(range(10))
    assert train.y[:8].tolist() == load("digits").train.y[:8].tolist()
    whole = torch.cat([train.x, test.x]).flatten(1)
    assert len(whole.unique(dim=0)) == 1797  # no image is in both parts


def test_load_records_what_was_read() -> None:
    before = len(LOADED)
    load("digits")
    record = LOADED[before]
    assert (record.name, record.samples) == ("digits", 1797)
    assert record.thread == threading.get_ident() and record.seconds >= 0
    assert all(len(checksum) == 64 for checksum in record.checksums.values())


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown data source 'mnits'") as caught:
        load("mnits")
    assert caught.value.remedy == did_you_mean("mnits", SOURCES.names())


def test_idx_gzipped_and_plain(tmp_path: Path, unchecked: None) -> None:
    make_small(tmp_path)
    train, test = load("kmnist", folder=tmp_path)
    assert train.x.shape == (5, 1, 28, 28) and test.y.tolist() == [0, 1, 2]
    assert train.x[0, 0, 0, :3].tolist() == pytest.approx([0, 1 / 255, 2 / 255])


def test_kmnist_in_its_full_size_is_accepted(tmp_path: Path) -> None:
    for prefix, count in (("train", 60_000), ("t10k", 10_000)):
        images, labels = np.zeros((count, 28, 28)), np.arange(count) % 10
        (tmp_path / f"{prefix}-images-idx3-ubyte").write_bytes(idx_bytes(images))
        (tmp_path / f"{prefix}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
    train, test = load("kmnist", folder=tmp_path)
    assert (len(train.y), len(test.y)) == (60_000, 10_000)


def test_a_wrong_size_is_named(tmp_path: Path) -> None:
    make_small(tmp_path)
    with pytest.raises(InputError, match=r"train-images-idx3-ubyte\.gz is not the published file"):
        load("kmnist", folder=tmp_path)


@pytest.mark.parametrize("keep", [10, 40, 200])
def test_a_cut_archive_is_named(tmp_path: Path, unchecked: None, keep: int) -> None:
    make_small(tmp_path)
    path = tmp_path / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InputError, match="t10k-images") as caught:
        load("mnist", folder=tmp_path)
    assert "Delete it" in caught.value.remedy


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x00\x00\x08",
        b"<html>not here</html>",
        b"\x00\x00\x0d\x01" + b"\x00\x00\x00\x01" + b"\x00\x00\x00\x00",
        idx_bytes(np.zeros((2, 2))),
        idx_bytes(np.zeros(9))[:-1],
        idx_bytes(np.zeros(9)) + b"x",
    ],
)
def test_what_is_not_idx_is_refused(data: bytes) -> None:
    with pytest.raises(InputError, match="not an IDX file"):
        idx.parse(Read(Path("f"), data, ""), dimensions=1)


def test_labels_must_fit_the_images(tmp_path: Path, unchecked: None) -> None:
    make_small(tmp_path)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(idx_bytes(np.arange(4)))
    with pytest.raises(InputError, match="4 labels for 5 images"):
        load("mnist", folder=tmp_path)
    labels.write_bytes(idx_bytes(np.array([0, 1, 2, 3, 10])))
    with pytest.raises(InputError, match="a label 10"):
        load("mnist", folder=tmp_path)


def test_checksum_mismatch_and_its_marker(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"good")
    good = Published("f", 4, hashlib.sha256(b"good").hexdigest())
    assert published.read(tmp_path, good).sha256 == good.sha256
    assert (tmp_path / published.MARKER).exists()
    path.write_bytes(b"evil")  # same size: only the checksum (and the marker's time) can tell
    with pytest.raises(InputError, match="f is not the published file: its checksum"):
        published.read(tmp_path, good)


def test_the_marker_saves_the_second_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "f").write_bytes(b"good")
    file = Published("f", 4)
    first = published.read(tmp_path, file)
    monkeypatch.setattr(published.hashlib, "sha256", None)
    assert published.read(tmp_path, file) == first


def test_a_damaged_marker_is_only_a_missing_one(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"good")
    for text in ("{", "[]", '{"f": 3}', '{"f": [4, 0, null]}'):
        (tmp_path / published.MARKER).write_text(text)
        assert published.read(tmp_path, Published("f", 4)).data == b"good"


def test_offline_says_where_to_put_which_files(tmp_path: Path, offline: None) -> None:
    with pytest.raises(InputError, match="cannot download") as caught:
        load("kmnist", folder=tmp_path / "new")
    assert str(tmp_path / "new") in caught.value.remedy
    assert all(name in caught.value.remedy for name in idx.NAMES)
    with pytest.raises(InputError) as caught:
        load("cifar-10", folder=tmp_path / "cifar")
    assert "data_batch_3.bin" in caught.value.remedy
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert set(left) <= {".lock"}


def test_missing_files_are_downloaded(
    tmp_path: Path, home: tuple[Path, str], unchecked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    served, address = home
    make_small(served)
    for name in idx.NAMES[1::2]:
        plain = served / name
        (served / f"{name}.gz").write_bytes(gzip.compress(plain.read_bytes()))
    monkeypatch.setattr(idx, "KMNIST_HOMES", [address + "nowhere/", address])
    train, _ = load("kmnist", folder=tmp_path / "cache")
    assert len(train.y) == 5
    assert not list((tmp_path / "cache").glob(".*.part"))


def test_workers_that_start_together_download_once(
    tmp_path: Path, unchecked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_small(tmp_path / "home")
    asked: list[str] = []

    class Counting(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            name = self.path.strip("/").removesuffix(".gz")
            path = published.locate(tmp_path / "home", name)
            assert path is not None
            self.send_response(200)
            self.end_headers()
            self.wfile.write(path.read_bytes())

    with serving(Counting) as address, ThreadPoolExecutor(4) as workers:
        monkeypatch.setattr(idx, "KMNIST_HOMES", [address])
        loads = [workers.submit(load, "kmnist", folder=tmp_path / "cache") for _ in range(4)]
        assert all(len(one.result().train.y) == 5 for one in loads)
    assert sorted(asked) == sorted(f"/{name}.gz" for name in idx.NAMES)


def test_a_home_with_wrong_files_is_passed_over(
    tmp_path: Path, home: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served, address = home
    (served / "train-images-idx3-ubyte.gz").write_bytes(b"<html>please log in</html>")
    monkeypatch.setattr(idx, "MNIST_HOMES", [address])
    with pytest.raises(InputError, match="not the published file"):
        load("mnist", folder=tmp_path / "cache")
    assert not list((tmp_path / "cache").glob("*.gz"))


def small_cifar(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Four rows a file instead of ten thousand, with their own checksums."""
    rows = np.arange(4 * cifar.ROW).reshape(4, cifar.ROW) % 251
    rows[:, 0] = [0, 9, 3, 1]
    data = rows.astype(np.uint8).tobytes()
    checksum = hashlib.sha256(data).hexdigest()
    files = [Published(name, len(data), checksum) for name in cifar.CHECKSUMS]
    monkeypatch.setattr(cifar, "FILES", files)
    return {file.name: data for file in files}


def test_cifar_rows_are_a_label_and_three_planes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = small_cifar(monkeypatch)
    for name, data in contents.items():
        (tmp_path / name).write_bytes(data)
    train, test = load("cifar-10", folder=tmp_path)
    assert train.x.shape == (20, 3, 32, 32) and test.y.tolist() == [0, 9, 3, 1]
    row = np.frombuffer(contents["test_batch.bin"], np.uint8)[: cifar.ROW]
    assert float(test.x[0, 2, 1, 5]) == pytest.approx(row[1 + 2 * 1024 + 32 + 5] / 255)


def test_cifar_is_unpacked_from_its_archive(
    tmp_path: Path, home: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    served, address = home
    contents = small_cifar(monkeypatch)
    with tarfile.open(served / cifar.ARCHIVE, "w:gz") as tar:
        for name, data in {**contents, "../evil": b"x"}.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    monkeypatch.setattr(cifar, "HOMES", [address])
    folder = tmp_path / "cache"
    train, _ = load("cifar-10", folder=folder)
    assert len(train.y) == 20
    assert {p.name for p in folder.iterdir()} == {*contents, ".lock", published.MARKER}


@pytest.mark.parametrize("size", [0, cifar.ROW - 1, cifar.ROW + 1])
def test_cifar_sizes_must_be_whole_rows(size: int) -> None:
    with pytest.raises(InputError, match="not a multiple"):
        cifar.split([Read(Path("test_batch.bin"), bytes(size), "")])


def test_a_download_over_the_limit_leaves_nothing(tmp_path: Path, home: tuple[Path, str]) -> None:
    served, address = home
    (served / "big").write_bytes(bytes(1000))
    with pytest.raises(FetchError, match="larger than 999"):
        download(address + "big", tmp_path / "big", 999)
    assert not list(tmp_path.glob("*big*"))
    download(address + "big", tmp_path / "big", 1000)
    assert (tmp_path / "big").stat().st_size == 1000


class CutShort(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(bytes(50))


class ToPlainHttp(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(302)
        self.send_header("Location", "http://198.51.100.1/file")
        self.end_headers()


@pytest.mark.parametrize(
    ("handler", "why"), [(CutShort, "ended early|Incomplete"), (ToPlainHttp, "not HTTPS")]
)
def test_a_bad_answer_leaves_nothing(tmp_path: Path, handler: object, why: str) -> None:
    with serving(handler) as address, pytest.raises(FetchError, match=why):
        download(address + "f", tmp_path / "f", 1000)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("url", ["http://198.51.100.1/f", "ftp://198.51.100.1/f", "file:///etc/x"])
def test_only_https_is_spoken(tmp_path: Path, url: str) -> None:
    with pytest.raises(FetchError, match="not HTTPS"):
        download(url, tmp_path / "f", 10)


def test_the_folder_of_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(SETTINGS, raising=False)
    monkeypatch.delenv("PHALANX_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert data_folder("mnist") == tmp_path / "cache/phalanx/datasets/mnist"
    monkeypatch.setenv("PHALANX_DATA", str(tmp_path / "data"))
    assert data_folder("mnist") == tmp_path / "data/mnist"
    monkeypatch.setenv(SETTINGS, RunSettings(data=str(tmp_path)).to_json())
    assert data_folder("mnist") == tmp_path
    (tmp_path / "kmnist").mkdir()
    assert data_folder("kmnist") == tmp_path / "kmnist"
    assert data_folder("mnist", Path("/elsewhere")) == Path("/elsewhere")


def test_a_worker_thread_has_its_own_data_folder(tmp_path: Path) -> None:
    found: list[Path] = []

    def worker() -> None:
        settings = RunSettings(data=str(tmp_path)).to_json()
        enter(WorkerContext(environment={SETTINGS: settings}, hub=None))
        found.append(data_folder("mnist"))

    thread = threading.Thread(target=worker)
    thread.start()
    thread.join()
    assert found == [tmp_path]
