"""Long waits are announced, and end when nothing moves.

Time is virtual: it jumps to the next timer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phalanx.core.errors import MachineError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.launchers.remote_run import RemoteRun
from phalanx.launch.launchers.ssh import SshLauncher
from phalanx.launch.link import progress_notes
from phalanx.launch.link.event_loop import EventLoop
from phalanx.launch.link.progress_notes import MachineWait, telling
from phalanx.pool.machine import Machine

SECONDS = 20.0
M3 = Machine(name="m3", host="192.0.2.1")


class VirtualTime(asyncio.SelectorEventLoop):
    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        timers = self._scheduled  # type: ignore[attr-defined]
        if timers and not self._ready:  # type: ignore[attr-defined]
            self.now = max(self.now, timers[0]._when)
        super()._run_once()  # type: ignore[misc]


@pytest.fixture
def in_virtual_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[Awaitable[None]], float]:
    """Runs a coroutine and returns the second at which it ended."""

    def run(work: Any) -> float:
        with asyncio.Runner(loop_factory=VirtualTime) as runner:
            loop = runner.get_loop()
            monkeypatch.setattr(progress_notes, "time", SimpleNamespace(monotonic=loop.time))
            runner.run(work)
            return loop.time()

    return run


def now() -> float:
    return asyncio.get_running_loop().time()


def test_a_wait_is_announced_after_20_seconds_and_then_every_minute(in_virtual_time: Any) -> None:
    said: list[float] = []

    async def work() -> None:
        async with telling(lambda text: said.append(now()), lambda: "copying"):
            await asyncio.sleep(150.0)
        await asyncio.sleep(150.0)

    in_virtual_time(work())
    assert said == [20.0, 80.0, 140.0]


def test_a_note_of_the_machine_postpones_the_announcement(in_virtual_time: Any) -> None:
    said: list[float] = []

    async def work() -> None:
        one = MachineWait(M3, lambda text: said.append(now()))
        async with one.patiently(lambda: "copying", 300.0):
            await asyncio.sleep(15.0)
            one.heard("note")
            await asyncio.sleep(15.0)
            assert not said
            await asyncio.sleep(15.0)

    in_virtual_time(work())
    assert said == [35.0]


@pytest.mark.parametrize(
    ("told", "end"), [("sample", 300.0), ("note", 500.0), ("result_part", 500.0)]
)
def test_the_limit_counts_from_the_last_progress(
    in_virtual_time: Any, told: str, end: float
) -> None:
    async def work() -> None:
        one = MachineWait(M3, lambda text: None)
        with pytest.raises(MachineError) as caught:
            async with one.patiently(lambda: "checking 2.0 GB of data", 300.0):
                await asyncio.sleep(200.0)
                one.heard(told)
                await asyncio.sleep(1000.0)
        assert caught.value.cause == (
            "m3 has made no progress for 300 seconds: checking 2.0 GB of data"
        )

    assert in_virtual_time(work()) == end


def test_notes_are_shown_while_results_are_still_coming(tmp_path: Path) -> None:
    said: list[str] = []
    deadline = time.monotonic() + SECONDS

    class Slow(RemoteRun):
        """Its results come only after its first note was shown."""

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
