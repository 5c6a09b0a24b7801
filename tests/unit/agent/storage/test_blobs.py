"""The store of blobs: nothing gets its name before its checksum is right."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from phalanx.agent.frames import RequestProblem
from phalanx.agent.storage.blobs import BlobStore, checked_digest, missing_blobs
from phalanx.agent.storage.folders import checked_link, snapshot

CONTENT = os.urandom(5000)
DIGEST = hashlib.sha256(CONTENT).hexdigest()


def feed(store: BlobStore, start: int, end: int) -> None:
    for offset in range(start, end, 1000):
        piece = CONTENT[offset : offset + 1000]
        store.receive(DIGEST, offset, offset + 1000 >= len(CONTENT), piece)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*/*"))


def test_a_blob_is_there_when_it_is_whole(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    feed(store, 0, 4000)
    assert not store.has(DIGEST, 5000)
    assert names(tmp_path) == [f"{DIGEST}.part"]
    assert store.offset(DIGEST, 5000) == 4000
    feed(store, 4000, 5000)
    assert store.has(DIGEST, 5000)
    assert names(tmp_path) == [DIGEST]
    assert store.path(DIGEST).read_bytes() == CONTENT
    assert store.received == 5000


def test_a_piece_is_never_put_behind_a_hole(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    feed(store, 0, 1000)
    feed(store, 2000, 5000)
    assert not store.has(DIGEST, 5000)
    assert store.offset(DIGEST, 5000) == 0
    feed(store, 0, 5000)
    assert store.has(DIGEST, 5000)


def test_what_is_wrong_is_discarded(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    store.receive(DIGEST, 0, True, b"something else")
    assert names(tmp_path) == []
    assert store.trouble is None


def test_a_blob_that_lost_a_piece_is_asked_for_again(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    feed(store, 0, 5000)
    store.path(DIGEST).chmod(0o600)
    os.truncate(store.path(DIGEST), 100)
    entries = [{"sha256": DIGEST, "size": 5000}, {"sha256": DIGEST, "size": 5000}]
    assert list(missing_blobs(store, entries)) == [(0, 0)]
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_told_when_asked(tmp_path: Path) -> None:
    (tmp_path / "blobs").write_text("in the way")
    store = BlobStore(tmp_path / "blobs")
    feed(store, 0, 5000)
    assert isinstance(store.trouble, OSError)
    store.trouble = None
    assert store.trouble is None


@pytest.mark.parametrize("digest", ["", "abc", "../" + "a" * 61, "A" * 64, "a" * 65, 7, None])
def test_only_checksums_are_checksums(digest: object) -> None:
    with pytest.raises(RequestProblem):
        checked_digest(digest)


@pytest.mark.parametrize(
    ("path", "link", "stays"),
    [("a", "b", True), ("a/b", "../c", True), ("a", "../b", False), ("a/b", "../../c", False)],
)
def test_links_stay_inside(path: str, link: str, stays: bool) -> None:
    if stays:
        assert checked_link(path, link) == link
    else:
        with pytest.raises(RequestProblem):
            checked_link(path, link)


def test_a_snapshot_has_regular_files_only(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("12")
    (tmp_path / "link").symlink_to("a")
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__/a.pyc").write_text("")
    assert {name: status[0] for name, status in snapshot(tmp_path).items()} == {"a": 2}


def test_what_is_used_stays_young(tmp_path: Path) -> None:
    store = BlobStore(tmp_path)
    feed(store, 0, 5000)
    os.utime(store.path(DIGEST), (1, 1))
    assert store.has(DIGEST, 5000)
    assert store.path(DIGEST).stat().st_mtime > 1
