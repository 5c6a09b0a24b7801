"""What a machine may say is bounded and shown as plain lines; a start that fails leaves nobody."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest
from launch_support import make_job

from phalanx.core.errors import MachineError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.launchers.remote_run import RemoteRun
from phalanx.launch.launchers.ssh import SshLauncher
from phalanx.launch.link.agent_frames import Exited, Ports, WrongAgentFrame, read_as
from phalanx.launch.machines import machine_session as members
from phalanx.launch.machines.remote_files import LARGEST_TRACEBACK, FileDownload
from phalanx.launch.shipping.home.incoming import Incoming, is_safe
from phalanx.launch.shipping.versions import Inspection
from phalanx.pool.machine import Machine

ESCAPES = "\x1b]0;title\x07\x1b[2J\nnext line"


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path / "run-1").make()


@pytest.mark.parametrize(
    "name",
    [
        "events/rank-0.jsonl",
        "events/rank-01.jsonl",
        "events/rank-\u0661.jsonl",
        "logs/rank-1.log\n",
        "logs/../launch.json",
        "/etc/passwd",
    ],
)
def test_only_the_files_of_its_own_ranks_are_written(paths: RunPaths, name: str) -> None:
    before = sorted(paths.folder.rglob("*"))
    FileDownload(paths, [1], print).take(name, 0, b"evil")
    assert sorted(paths.folder.rglob("*")) == before


def test_a_traceback_without_end_is_cut(paths: RunPaths) -> None:
    said: list[str] = []
    home = FileDownload(paths, [1], said.append)
    home.take("logs/rank-1.traceback", 0, b"x" * (LARGEST_TRACEBACK + 5))
    home.take("logs/rank-1.traceback", LARGEST_TRACEBACK, b"more")
    assert paths.traceback_of(1).stat().st_size == LARGEST_TRACEBACK
    assert len(said) == 1 and "logs/rank-1.traceback" in said[0]


def test_a_piece_from_before_the_beginning_is_passed_over(paths: RunPaths) -> None:
    FileDownload(paths, [1], print).take("logs/rank-1.log", -2, b"abcd")
    assert not paths.log_of(1).exists()


def test_notes_are_plain_lines_and_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MOST_NOTES", 3)
    run = RemoteRun("run-1", [Machine(name="m2", host="192.0.2.1")])
    for _ in range(10):
        run.members[0].on_tell("note", {"text": ESCAPES}, b"")
    assert len(run.news) == 3
    assert all(text.isprintable() for text in run.news)


def test_whoever_keeps_talking_does_not_hold_up_the_controller() -> None:
    class Endless(list[str]):
        """Each line that is taken is followed by another."""

        def popleft(self) -> str:
            self.append("more")
            return self.pop(0)

    launcher, run = SshLauncher(), RemoteRun("run-1", [])
    run.news = Endless(["one", "two"])  # type: ignore[assignment]
    launcher._run = run
    assert launcher.news() == ["one", "two"]


@pytest.mark.parametrize("ports", [["a"], [0], [-1], [65536], [None], "22"])
def test_ports_are_numbers_of_ports(ports: object) -> None:
    with pytest.raises(WrongAgentFrame):
        read_as(Ports, {"ports": ports})


@pytest.mark.parametrize("code", [10**30, -1000, "0", None])
def test_exit_codes_are_those_of_processes(code: object) -> None:
    with pytest.raises(WrongAgentFrame):
        read_as(Exited, {"rank": 0, "code": code})


@pytest.mark.parametrize("field", ["executable", "version"])
def test_what_is_shown_of_a_python_is_one_line(field: str) -> None:
    fields = {"executable": "/usr/bin/python3", "version": "3.11.2", "packages": {}}
    msgspec.convert(fields, Inspection)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**fields, field: ESCAPES}, Inspection)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({**fields, "packages": {"torch": "2.13.0\n"}}, Inspection)


def test_a_result_that_cannot_fit_is_refused_before_it_comes(tmp_path: Path) -> None:
    incoming = Incoming("m2", tmp_path)
    incoming.on_tell("result", {"path": "files/huge", "size": 1 << 60}, b"")
    incoming.on_tell("result_part", {}, b"x" * 1000)
    assert list(tmp_path.iterdir()) == []
    assert "larger than the free space" in incoming.refused[0]


def test_a_result_in_very_many_folders_is_refused() -> None:
    assert is_safe("files/" + "a/" * 20 + "b")
    assert not is_safe("files/" + "a/" * 1000 + "b")


def test_profiles_come_home_and_nothing_beside_them() -> None:
    assert is_safe("profiles/rank-0.json")
    for path in ("profiles", "profiles/../launch.json", "profile/rank-0.json", "/profiles/a"):
        assert not is_safe(path)


def test_when_one_cannot_be_started_nobody_is_left_to_wait_for(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run-1").make()
    run = RemoteRun("run-1", [Machine(name="m1", host="here", folder=str(tmp_path / "there"))])
    (planned,) = make_job(tmp_path / "train.py", 2).plan.machines

    async def go() -> None:
        await run.connect()
        (member,) = run.members
        try:
            member.begin(paths, planned)
            with pytest.raises(MachineError, match="cannot start rank 1: no program"):
                await member.start([{"rank": 0, "argv": ["sleep", "300"]}, {"rank": 1, "argv": []}])
            assert run.all_ended() and not run.codes
            assert (await member.link.ask("start", workers=[]))["pids"] == {}
            member.started_ranks = [0]
            assert run.left_behind() == [
                f"m1 still has its results, in {tmp_path}/there/runs/run-1"
            ]
        finally:
            await run.close()

    asyncio.run(asyncio.wait_for(go(), 60))
