"""Sending: only what is missing, once, from where it was interrupted, and checked."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from shipping_support import NearLink, reopen

from phalanx.agent.storage import blobs
from phalanx.agent.storage import folders as files
from phalanx.core.errors import InputError, MachineError
from phalanx.launch.link.agent_link import open_agent
from phalanx.launch.shipping import send
from phalanx.launch.shipping.manifest import FileEntry, FileManifest
from phalanx.launch.shipping.send import ship
from phalanx.launch.shipping.uploads import data_manifest
from phalanx.pool.machine import Machine


@pytest.fixture(autouse=True)
def _small_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(send, "PIECE", 1000)
    monkeypatch.setattr(send, "WINDOW", 4000)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "ein projekt"
    (root / "tief/ä ö").mkdir(parents=True)
    (root / "train.py").write_text("print(1)")
    (root / "again.py").write_text("print(1)")
    (root / "empty").write_text("")
    (root / "nothing").mkdir()
    (root / "tief/ä ö/big 世界").write_bytes(bytes(range(256)) * 40)
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "link").symlink_to("tief/ä ö")
    return root


def contents(folder: Path) -> dict[str, bytes | str]:
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        else:
            found[name] = "folder" if path.is_dir() else path.read_bytes()
    return found


def send_to(link: NearLink, root: Path, kind: str = "project") -> Path:
    return Path(asyncio.run(ship(link, data_manifest(root)[1], root, kind)))


def test_the_project_arrives_as_it_is(tmp_path: Path, project: Path) -> None:
    link = NearLink(tmp_path / "there")
    there = send_to(link, project)
    assert there == link.agent.run_folder / "project"
    assert contents(there) == contents(project)
    assert os.access(there / "run.sh", os.X_OK)
    assert not os.access(there / "train.py", os.X_OK)


class Watched(NearLink):
    """Notes what the user would read if it took long, and how long it may take."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.waits: dict[str, float] = {}

    async def ask(
        self, name: str, *, timeout: float = 10.0, payload: bytes = b"", **fields: Any
    ) -> dict[str, Any]:
        self.waits[fields["doing"]()] = timeout
        return await super().ask(name, timeout=timeout, payload=payload, **fields)


def test_all_that_may_take_long_has_words_and_time_enough(tmp_path: Path, project: Path) -> None:
    (project / "sparse").touch()
    os.truncate(project / "sparse", 2_000_000)
    link = Watched(tmp_path / "there")
    send_to(link, project, "data")
    allowed = send.ANSWER_SECONDS + 8 * send.SLOWEST_FILE
    assert link.waits["checking 2.01 MB of data"] == pytest.approx(allowed + 1.0, abs=0.2)
    assert link.waits["unpacking 2.01 MB of data"] == pytest.approx(allowed + 1.0, abs=0.2)
    assert "copying 2.01 MB of data" in link.waits


def test_the_same_content_is_sent_once(tmp_path: Path, project: Path) -> None:
    link = NearLink(tmp_path / "there")
    manifest = data_manifest(project)[1]
    send_to(link, project)
    twice = len("print(1)")
    assert link.sent == manifest.size - twice + len(manifest.content)
    again = NearLink(tmp_path / "there", run="run-2")
    assert contents(send_to(again, project)) == contents(project)
    assert again.sent == 0
    (project / "train.py").write_text("print(234)")
    third = NearLink(tmp_path / "there", run="run-3")
    assert contents(send_to(third, project)) == contents(project)
    assert third.sent == len("print(234)") + len(data_manifest(project)[1].content)


def test_what_a_script_changes_is_its_own_copy(tmp_path: Path, project: Path) -> None:
    (send_to(NearLink(tmp_path / "there"), project) / "train.py").write_text("spoilt!!")
    second = send_to(NearLink(tmp_path / "there", run="run-2"), project)
    assert contents(second) == contents(project)


def test_data_are_shared_kept_and_not_stored_twice(tmp_path: Path, project: Path) -> None:
    first = send_to(NearLink(tmp_path / "there"), project, "data")
    link = NearLink(tmp_path / "there", run="run-2")
    assert send_to(link, project, "data") == first
    assert link.sent == 0
    assert contents(first) == contents(project)
    big = first / "tief/ä ö/big 世界"
    assert big.stat().st_nlink == 2
    assert not big.stat().st_mode & 0o222


def test_an_interrupted_sending_goes_on_where_it_was(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    (root / "big").write_bytes(os.urandom(50_000))
    link = NearLink(tmp_path / "there")
    manifest = data_manifest(root)[1]
    link.cut_after = 30_000 + len(manifest.content)
    with pytest.raises(MachineError, match="gone"):
        send_to(link, root, "data")
    assert not (tmp_path / "there/data" / manifest.digest).exists()
    again = reopen(link)
    assert contents(send_to(again, root, "data")) == contents(root)
    assert again.sent == 50_000 - 30_000


def test_a_part_of_something_else_is_not_trusted(tmp_path: Path) -> None:
    root = tmp_path / "data"
    root.mkdir()
    (root / "big").write_bytes(os.urandom(5000))
    link = NearLink(tmp_path / "there")
    digest = data_manifest(root)[1].entries[0].sha256
    part = blobs.store_of(link.agent).part(digest)
    part.parent.mkdir(parents=True)
    part.write_bytes(bytes(3000))
    assert contents(send_to(link, root, "data")) == contents(root)


def test_what_arrives_garbled_is_sent_again_once(tmp_path: Path, project: Path) -> None:
    link = NearLink(tmp_path / "there")
    spoilt = []

    def garble(offset: int, piece: bytes) -> bytes:
        if offset == 3000 and not spoilt:
            spoilt.append(offset)
            return bytes(len(piece))
        return piece

    link.garble = garble
    assert contents(send_to(link, project)) == contents(project)
    assert spoilt == [3000]


def test_what_always_arrives_garbled_is_an_error(tmp_path: Path, project: Path) -> None:
    link = NearLink(tmp_path / "there")
    link.garble = lambda offset, piece: bytes(len(piece)) if offset == 3000 else piece
    with pytest.raises(MachineError, match="big 世界 arrived at m1 with another checksum"):
        send_to(link, project)
    assert not (link.agent.run_folder / "project").exists()


def test_a_file_that_shrinks_meanwhile_is_named(tmp_path: Path, project: Path) -> None:
    manifest = data_manifest(project)[1]
    (project / "tief/ä ö/big 世界").write_bytes(b"short")
    with pytest.raises(InputError, match="big 世界 became shorter"):
        asyncio.run(ship(NearLink(tmp_path / "there"), manifest, project, "data"))


def test_progress_ends_with_everything(tmp_path: Path, project: Path) -> None:
    told: list[tuple[int, int, str]] = []
    manifest = data_manifest(project)[1]
    asyncio.run(
        ship(NearLink(tmp_path / "there"), manifest, project, "data", lambda *t: told.append(t))
    )
    total = manifest.size - len("print(1)")
    assert told[0] == (0, total, "m1")
    assert told[-1] == (total, total, "m1")
    assert [done for done, _, _ in told] == sorted(done for done, _, _ in told)
    assert len(told) > 2


def test_many_missing_files_are_named_page_by_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "PAGE", 7)
    root = tmp_path / "many"
    root.mkdir()
    for number in range(20):
        (root / f"{number}").write_text(f"content {number}")
    assert contents(send_to(NearLink(tmp_path / "there"), root)) == contents(root)


DIGEST_OF_X = hashlib.sha256(b"x").hexdigest()


@pytest.mark.parametrize(
    "entry",
    [
        FileEntry("../out", 1, DIGEST_OF_X),
        FileEntry("/out", 1, DIGEST_OF_X),
        FileEntry("a/../../out", 1, DIGEST_OF_X),
        FileEntry("out", link="/etc/passwd"),
        FileEntry("deep/out", link="../../x"),
    ],
)
def test_the_agent_lays_out_nothing_elsewhere(tmp_path: Path, entry: FileEntry) -> None:
    link = NearLink(tmp_path / "there")
    store = blobs.store_of(link.agent)
    store.path(DIGEST_OF_X).parent.mkdir(parents=True)
    store.path(DIGEST_OF_X).write_text("x")
    with pytest.raises(MachineError, match=r"unsafe (path|link)"):
        asyncio.run(ship(link, FileManifest((entry,)), tmp_path, "data"))
    assert not (tmp_path / "there/data").exists() or not list((tmp_path / "there/data").iterdir())


def in_small_disk(tmp_path: Path, options: str) -> Machine:
    """This machine, with an agent that sees its folder as a small disk of its own."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    folder, python = tmp_path / "small disk", tmp_path / "python"
    folder.mkdir()
    mount = f'mount -t tmpfs -o {options} tmpfs "{folder}" && exec python3 "$@"'
    python.write_text(f"#!/bin/sh\nexec unshare -m sh -c '{mount}' sh \"$@\"\n")
    python.chmod(0o755)
    return Machine(name="m2", host="here", python=str(python), folder=str(folder))


def refusal(machine: Machine, root: Path, kind: str) -> str:
    async def go() -> None:
        async with await open_agent(machine, run="run-1") as link:
            await ship(link, data_manifest(root)[1], root, kind)

    with pytest.raises(MachineError) as caught:
        asyncio.run(go())
    assert "'folder'" in caught.value.remedy
    return caught.value.cause


def test_a_disk_that_is_too_small_is_known_before(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/big").write_bytes(bytes(3_000_000))
    machine = in_small_disk(tmp_path, "mode=0700,size=2m")
    told = refusal(machine, tmp_path / "data", "data")
    assert told.startswith("m2: 2.1 MB are free in ")
    assert told.endswith("small disk, but 3.0 MB are needed")


def test_a_disk_that_is_full_on_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number in range(60):
        (tmp_path / f"data/{number}").write_text(f"{number}")
    machine = in_small_disk(tmp_path, "mode=0700,size=9m,nr_inodes=40")
    assert "m2: no space is left in " in refusal(machine, tmp_path / "data", "data")


def test_data_that_lost_a_file_are_laid_out_again(tmp_path: Path, project: Path) -> None:
    there = send_to(NearLink(tmp_path / "there"), project, "data")
    (there / "train.py").unlink()
    again = NearLink(tmp_path / "there", run="run-2")
    assert contents(send_to(again, project, "data")) == contents(project)
    assert again.sent == 0
