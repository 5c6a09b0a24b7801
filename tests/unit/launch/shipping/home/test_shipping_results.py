"""Results: they come home under safe names, checked; what is nowhere else is not removed."""

from __future__ import annotations

import asyncio
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from shipping_support import NearLink

from phalanx.agent.storage.environments import MARKER
from phalanx.core.errors import MachineError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.link.agent_link import open_agent
from phalanx.launch.shipping.home.incoming import Incoming
from phalanx.launch.shipping.home.results import Collected, clean_up, collect_results
from phalanx.launch.shipping.send import ship
from phalanx.launch.shipping.uploads import data_manifest
from phalanx.pool.machine import Machine


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path / "home/run-1").make()


def machine_with(tmp_path: Path, name: str, files: dict[str, bytes]) -> NearLink:
    link = NearLink(tmp_path / name, name)
    for path, content in files.items():
        file = link.agent.run_folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return link


def collect(paths: RunPaths, *links: NearLink) -> Collected:
    return asyncio.run(collect_results(links, paths))


def at_home(paths: RunPaths) -> dict[str, bytes]:
    found = (path for path in paths.folder.rglob("*") if path.is_file())
    return {path.relative_to(paths.folder).as_posix(): path.read_bytes() for path in found}


def test_what_workers_wrote_comes_home(tmp_path: Path, paths: RunPaths) -> None:
    files = {
        "files/a b/ü.txt": b"one",
        "files/empty": b"",
        "files/big": os.urandom(2_500_000),
        "model.safetensors": b"model",
        "best.safetensors": b"best",
        "checkpoints/0001/state": b"state",
    }
    others = {"events/rank-0.jsonl": b"{}", "logs/rank-0.log": b"log", "project/x": b"x"}
    collected = collect(paths, machine_with(tmp_path, "m1", {**files, **others}))
    assert at_home(paths) == files
    assert collected.notes == []


def test_links_and_pipes_stay_where_they_are(tmp_path: Path, paths: RunPaths) -> None:
    link = machine_with(tmp_path, "m1", {"files/a": b"a"})
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("key")
    (link.agent.run_folder / "files/folder").symlink_to(secret)
    (link.agent.run_folder / "files/file").symlink_to(secret / "key")
    (link.agent.run_folder / "model.safetensors").symlink_to(secret / "key")
    (link.agent.run_folder / "checkpoints").symlink_to(secret)
    os.mkfifo(link.agent.run_folder / "files/pipe")
    collect(paths, link)
    assert at_home(paths) == {"files/a": b"a"}


def test_the_first_machine_keeps_a_name_that_two_have(tmp_path: Path, paths: RunPaths) -> None:
    first = {"files/x": b"1", "files/same": b"s", "checkpoints/c": b"1", "files/t": b""}
    second = {"files/x": b"2", "files/same": b"s", "checkpoints/c": b"2", "files/t/u": b"u"}
    links = [machine_with(tmp_path, "m1", first), machine_with(tmp_path, "m2", second)]
    collected = collect(paths, *links)
    moved = {"files/m2/x": b"2", "files/m2/checkpoints/c": b"2", "files/m2/t/u": b"u"}
    assert at_home(paths) == {**first, **moved}
    assert "files/x of m2 was saved as files/m2/x" in collected.notes
    assert len(collected.notes) == 3
    assert not collected.incomplete


def test_a_name_that_is_not_utf_8_is_told_and_kept(tmp_path: Path, paths: RunPaths) -> None:
    link = machine_with(tmp_path, "m1", {"files/a": b"a"})
    odd = link.agent.run_folder / "files" / os.fsdecode(b"caf\xe9")
    odd.write_text("x")
    collected = collect(paths, link)
    assert collected.notes == ["m1: these results were not fetched: files/caf\\xe9 (not UTF-8)"]
    assert "were not fetched" in asyncio.run(clean_up(link))[0]
    assert odd.exists()


UNSAFE = [
    "../x",
    "files/../x",
    "/etc/passwd",
    "files//x",
    "files/./x",
    "files",
    "files/",
    "events/rank-0.jsonl",
    "launch.json",
    "plan.json",
    "checkpoints",
    "files/a\nb",
    "files/a\0b",
    "files/" + "a" * 256,
    "files/" + "a/" * 3000 + "b",
    "",
    "..",
]


def told(incoming: Incoming, path: Any, size: Any, *parts: bytes, sha256: str = "") -> None:
    digest = sha256 or hashlib.sha256(b"".join(parts)).hexdigest()
    incoming.on_tell("result", {"path": path, "size": size}, b"")
    for part in parts:
        incoming.on_tell("result_part", {}, part)
    incoming.on_tell("result_end", {"sha256": digest}, b"")


def test_only_what_was_announced_is_taken(tmp_path: Path) -> None:
    incoming = Incoming("m1", tmp_path)
    told(incoming, "../../out", 1, b"x")
    told(incoming, "files/larger", 3, b"ab", b"cd")
    told(incoming, "files/shorter", 3, b"ab")
    told(incoming, "files/wrong", 2, b"ab", sha256="0" * 64)
    told(incoming, "files/negative", -1)
    told(incoming, 7, 1, b"x")
    told(incoming, "files/a", "many", b"x")
    incoming.on_tell("result_part", {}, b"of nothing")
    incoming.on_tell("result", {"path": "files/cut", "size": 9}, b"")
    told(incoming, "files/good", 4, b"ab", b"cd")
    incoming.close()
    assert [one.path for one in incoming.received] == ["files/good"]
    assert len(incoming.refused) == 7
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"abcd"]
    assert not incoming.on_tell("note", {"text": "hello"}, b"")


class Hostile(NearLink):
    """A machine that sends what it likes."""

    def __init__(self, folder: Path, results: list[tuple[str, bytes]]) -> None:
        super().__init__(folder, "evil")
        self.results = results

    async def ask(self, name: str, **fields: Any) -> dict[str, Any]:
        if name != "collect":
            return await super().ask(name, **fields)
        for path, content in self.results:
            self.agent.tell("result", path=path, size=len(content))
            self.agent.send({"tell": "result_part"}, content)
            self.agent.tell("result_end", sha256=hashlib.sha256(content).hexdigest())
        return {"files": 1, "bytes": 1}


def test_a_hostile_machine_writes_nowhere_else(tmp_path: Path, paths: RunPaths) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (paths.files / "led").symlink_to(outside)
    (paths.files / "file").symlink_to(outside / "kept")
    names = [*UNSAFE, "files/led/x", "files/file"]
    collected = collect(paths, Hostile(tmp_path / "evil", [(name, b"bad") for name in names]))
    assert {p.name: p.read_text() for p in outside.iterdir()} == {"kept": "kept"}
    assert (paths.files / "file").is_symlink()
    # Under its own name below the machine's it is harmless.
    assert (paths.files / "evil/led/x").read_bytes() == b"bad"
    assert (paths.files / "evil/file").read_bytes() == b"bad"
    assert "evil" in collected.incomplete
    assert sorted(p.name for p in paths.folder.iterdir()) == ["events", "files", "logs", "machines"]


def test_a_machine_lost_on_the_way_does_not_take_the_others_along(
    tmp_path: Path, paths: RunPaths
) -> None:
    class Lost(Hostile):
        async def ask(self, name: str, **fields: Any) -> dict[str, Any]:
            await super().ask(name, **fields)
            raise MachineError("evil is gone", "")

    lost = Lost(tmp_path / "evil", [("files/whole", b"w")])
    collected = collect(paths, lost, machine_with(tmp_path, "m2", {"files/a": b"a"}))
    assert at_home(paths) == {"files/whole": b"w", "files/a": b"a"}
    assert collected.incomplete == {"evil"}
    assert collected.notes == ["not all results of evil were fetched: evil is gone"]


def make_project(tmp_path: Path, link: NearLink) -> Path:
    root = tmp_path / "project"
    root.mkdir(exist_ok=True)
    (root / "train.py").write_text("1")
    (root / "kept.txt").write_text("1")
    return Path(asyncio.run(ship(link, data_manifest(root)[1], root, "project")))


def test_new_files_are_named_and_kept(tmp_path: Path) -> None:
    link = NearLink(tmp_path / "m1")
    project = make_project(tmp_path, link)
    (project / "__pycache__").mkdir()
    (project / "__pycache__/x.pyc").write_text("")
    (project / "new ü.txt").write_text("12")
    (project / "train.py").write_text("22")
    (link.agent.run_folder / "events/rank-0.jsonl").write_text("{}")
    notes = asyncio.run(clean_up(link))
    assert notes == [f"m1 still has 2 new files in {project}: new ü.txt (2 B), train.py (2 B)"]
    assert (project / "new ü.txt").read_text() == "12"
    assert sorted(p.name for p in link.agent.run_folder.iterdir()) == ["project"]


def test_results_that_are_not_home_are_not_removed(tmp_path: Path) -> None:
    link = machine_with(tmp_path, "m1", {"files/a": b"a", "logs/rank-0.log": b"x"})
    (note,) = asyncio.run(clean_up(link))
    kept = link.agent.run_folder / "files"
    assert note == f"m1 has results that were not fetched: {kept}"
    assert [p.name for p in link.agent.run_folder.iterdir()] == ["files"]


def test_only_what_nobody_used_for_long_is_removed(tmp_path: Path) -> None:
    link = NearLink(tmp_path / "m1")
    make_project(tmp_path, link)
    files = sorted((tmp_path / "m1/blobs").glob("*/*"))
    old = tmp_path / "m1/blobs/ab" / ("ab" * 32)
    old.parent.mkdir(exist_ok=True)
    old.write_text("old")
    part = tmp_path / "m1/data/x.1.part"
    used = [tmp_path / "m1" / name for name in ("data/new", "environments/new", "runs/new")]
    unused = [tmp_path / "m1" / name for name in ("data/old", "environments/old", "runs/old")]
    for folder in (part, *used, *unused):
        folder.mkdir(parents=True)
    (used[1] / MARKER).touch()
    (unused[1] / MARKER).touch()
    for path in (old, part, used[1], *unused, unused[1] / MARKER):
        os.utime(path, (1, 1))
    asyncio.run(clean_up(link))
    assert sorted((tmp_path / "m1/blobs").glob("*/*")) == files
    assert not part.exists()
    assert all(path.exists() for path in used)
    assert not any(path.exists() for path in unused)


@pytest.mark.parametrize("file", ["files/a", "project/kept", "logs/rank-0.log", "results-are-home"])
def test_a_run_that_was_left_behind_goes_when_it_has_nothing(tmp_path: Path, file: str) -> None:
    left = machine_with(tmp_path, "m1", {file: b"x"}).agent.run_folder
    for path in (left, *left.rglob("*")):
        os.utime(path, (1, 1))
    asyncio.run(clean_up(NearLink(tmp_path / "m1", run="another")))
    assert left.exists() == (file in ("files/a", "project/kept"))


def test_a_run_that_still_writes_is_not_left_behind(tmp_path: Path) -> None:
    link = machine_with(tmp_path, "m1", {"logs/rank-0.log": b"x"})
    os.utime(link.agent.run_folder, (1, 1))
    asyncio.run(clean_up(NearLink(tmp_path / "m1", run="another")))
    assert link.agent.run_folder.exists()


def test_a_real_agent_brings_home_and_cleans_up(tmp_path: Path, paths: RunPaths) -> None:
    big = os.urandom(9_000_000)

    async def go() -> list[str]:
        machine = Machine(name="me", host="here", folder=str(tmp_path / "there"))
        async with await open_agent(machine, run="run-1") as link:
            files = tmp_path / "there/runs/run-1/files"
            (files / "big").write_bytes(big)
            notes = (await collect_results([link], paths)).notes
            return notes + await clean_up(link)

    assert asyncio.run(go()) == []
    assert at_home(paths) == {"files/big": big}
    assert not (tmp_path / "there/runs/run-1").exists()
