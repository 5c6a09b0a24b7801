"""A checkpoint comes home whole, with the checksums of its manifest, or it is not there."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from checkpoint_making import newest, write_whole_checkpoint

from phalanx.agent.agent import Agent
from phalanx.agent.storage import run_results as saved
from phalanx.core.errors import MachineError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.shipping.home.checkpoints import CheckpointDownload, at_home, place
from phalanx.launch.shipping.home.incoming import Incoming, Received


class _Agent:
    """Sends into ``incoming`` what an agent sends over its connection."""

    def __init__(self, folder: Path) -> None:
        self.run_folder = folder
        self.incoming: Incoming | None = None
        self.breaks_after = 1 << 30

    def send(self, header: dict[str, Any], payload: bytes = b"") -> None:
        self.breaks_after -= 1
        if self.breaks_after < 0:
            raise MachineError("the machine is gone")
        assert self.incoming.on_tell(header["tell"], header, payload)


def _home(tmp_path: Path, agent: _Agent, said: list[str]) -> CheckpointDownload:
    async def fetch(incoming: Incoming, name: str) -> dict[str, Any]:
        agent.incoming = incoming
        try:
            return saved.checkpoint(agent, {"checkpoint": name}, b"")  # type: ignore[arg-type]
        finally:
            incoming.close()

    return CheckpointDownload("m1", RunPaths(tmp_path / "home").make(), fetch, said.append)


def _hear(home: CheckpointDownload, *names: str) -> None:
    async def hear() -> None:
        for name in names:
            home.hear(name)
            await home.finish()

    asyncio.run(hear())


def _made(folder: Path, *numbers: int) -> Path:
    for number in numbers:
        write_whole_checkpoint(folder / "checkpoints", number)
    return folder


def test_what_is_finished_is_told_once_and_comes_whole(tmp_path: Path) -> None:
    agent, said = _Agent(_made(tmp_path / "there", 1, 2)), []
    there, told = Agent({}), []
    there.run_folder = agent.run_folder
    there.connection = SimpleNamespace(send=lambda header, *_, **__: told.append(header))
    for _ in range(3):
        there.look_after_workers()
    assert told == [{"tell": "saved", "checkpoint": "000002"}]
    home = _home(tmp_path, agent, said)
    _hear(home, "000002")
    assert newest(tmp_path / "home" / "checkpoints") == 2
    assert not said
    assert not list((tmp_path / "there").rglob(".leaving/*"))


def test_a_machine_that_dies_while_it_sends_leaves_no_half_checkpoint(tmp_path: Path) -> None:
    agent, said = _Agent(_made(tmp_path / "there", 1, 2)), []
    home = _home(tmp_path, agent, said)
    _hear(home, "000001")
    agent.breaks_after = 4
    _hear(home, "000002")
    assert at_home(RunPaths(tmp_path / "home")) == ["000001"]
    assert "checkpoint 2 was not fetched yet: the machine is gone" in said[0]
    assert newest(tmp_path / "home" / "checkpoints") == 1


def test_what_did_not_come_is_fetched_when_the_agent_tells_of_it_again(tmp_path: Path) -> None:
    """As one does to a controller that has reached it again."""
    agent, said = _Agent(_made(tmp_path / "there", 1)), []
    home = _home(tmp_path, agent, said)
    agent.breaks_after = 1
    _hear(home, "000001")
    assert at_home(RunPaths(tmp_path / "home")) == []
    agent.breaks_after = 1 << 30
    _hear(home, "000001")
    assert at_home(RunPaths(tmp_path / "home")) == ["000001"]


def test_older_ones_go_when_the_workers_have_removed_them_and_a_newer_one_is_here(
    tmp_path: Path,
) -> None:
    agent, said = _Agent(_made(tmp_path / "there", 1, 2, 3)), []
    home = _home(tmp_path, agent, said)
    _hear(home, "000001", "000002")
    (tmp_path / "there/checkpoints/000001").rename(tmp_path / "there/checkpoints/.gone")
    assert at_home(RunPaths(tmp_path / "home")) == ["000001", "000002"]
    _hear(home, "000003")
    assert at_home(RunPaths(tmp_path / "home")) == ["000002", "000003"]


@pytest.mark.parametrize("wrong", ["missing", "changed", "more", "no manifest"])
def test_what_does_not_fit_its_manifest_gets_no_name(tmp_path: Path, wrong: str) -> None:
    folder = _made(tmp_path / "there", 1) / "checkpoints" / "000001"
    files = {path.name: path for path in folder.iterdir()}
    if wrong == "missing":
        del files["shared.safetensors"]
    elif wrong == "changed":
        files["shared.safetensors"].write_bytes(b"x")
    elif wrong == "more":
        files["more"] = files["shared.safetensors"]
    else:
        del files["manifest.json"]
    received = [_received(name, path) for name, path in files.items()]
    paths = RunPaths(tmp_path / "home").make()
    with pytest.raises(OSError, match="manifest"):
        place(received, paths, "000001")
    assert at_home(paths) == []


def _received(name: str, path: Path) -> Received:
    content = path.read_bytes()
    return Received(
        f"checkpoints/000001/{name}", hashlib.sha256(content).hexdigest(), len(content), path
    )
