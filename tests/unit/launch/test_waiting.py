"""Waiting that is told, and that ends when nothing moves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from phalanx.core.errors import MachineError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.launchers.remote_run import RemoteRun
from phalanx.launch.launchers.ssh import SshLauncher
from phalanx.launch.machines.event_loop import EventLoop
from phalanx.launch.run import progress_notes as waiting
from phalanx.launch.run.progress_notes import MachineWait, telling
from phalanx.pool.machine import Machine

SECONDS = 20.0
M3 = Machine(name="m3", host="192.0.2.1")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "FIRST_WORD", 0.02)
    monkeypatch.setattr(waiting, "EACH_WORD", 0.02)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, SECONDS))


def test_it_is_said_again_and_again_and_not_when_it_is_over() -> None:
    said: list[str] = []

    async def work() -> None:
        async with telling(said.append, lambda: f"for the {len(said) + 1}. time"):
            while len(said) < 3:
                await asyncio.sleep(0.01)
        told = len(said)
        await asyncio.sleep(0.1)
        assert len(said) == told

    run(work())
    assert said[:3] == ["for the 1. time", "for the 2. time", "for the 3. time"]


def test_nothing_is_said_while_there_are_signs() -> None:
    said: list[str] = []

    async def work() -> None:
        async with telling(said.append, lambda: "", time.monotonic):
            await asyncio.sleep(0.1)

    run(work())
    assert not said


def test_each_sign_of_progress_gives_the_whole_time_anew() -> None:
    async def work() -> None:
        one = MachineWait(M3, print)
        async with one.patiently(lambda: "copying", 300.0):
            (limit,) = one._limits
            ends = [limit.when() or 0.0]
            for told in ("sample", "note", "result_part"):
                await asyncio.sleep(0.001)
                one.heard(told)
                ends.append(limit.when() or 0.0)
        assert ends[0] == ends[1] < ends[2] < ends[3]
        assert not one._limits

    run(work())


def test_without_progress_it_ends_and_names_the_machine_and_what_it_was_doing() -> None:
    async def work() -> None:
        with pytest.raises(MachineError) as caught:
            async with MachineWait(M3, print).patiently(lambda: "checking 2.0 GB of data", 0.05):
                await asyncio.sleep(SECONDS)
        assert caught.value.cause == (
            "m3 has made no progress for 0 seconds: checking 2.0 GB of data"
        )

    run(work())


def test_what_is_said_while_results_come_home_is_heard_meanwhile(tmp_path: Path) -> None:
    said: list[str] = []
    deadline = time.monotonic() + SECONDS

    class Slow(RemoteRun):
        """Its results come when the user has been told that they are waited for."""

        async def bring_home(self, paths: RunPaths) -> None:
            self.news.append("waiting for m3: bringing its results home")
            while not said:
                await asyncio.sleep(0.01)
            self.news.append("they are home")

    launcher = SshLauncher()
    launcher._run, launcher._loop = Slow("run-1", []), EventLoop()
    launcher._paths = RunPaths(tmp_path / "run-1").make()
    launcher.finish(said.append, lambda: time.monotonic() > deadline)
    assert said == ["waiting for m3: bringing its results home", "they are home"]
