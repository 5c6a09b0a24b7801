"""A computer that slept takes its run up again, without the machines having missed it."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from launch_support import make_job

from phalanx.core.errors import InputError, MachineError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.launchers.remote_run import RemoteRun
from phalanx.launch.link import agent_link
from phalanx.launch.link.agent_link import open_agent
from phalanx.launch.machines import reconnect
from phalanx.launch.machines.reconnect import reconnect_seconds
from phalanx.pool.machine import Machine

COUNTS = "n=0; while test $n -lt 40; do n=$((n+1)); echo $n; sleep 0.05; done"


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(open_agent.__kwdefaults__, "patience", 1.0)
    monkeypatch.setattr(agent_link, "OWN_GAP", 0.5)
    monkeypatch.setattr(reconnect, "BETWEEN", 0.1)


class Place:
    """A run of one worker, whose agent is a real one on this machine."""

    def __init__(self, folder: Path) -> None:
        self.paths = RunPaths(folder / "run-1").make()
        machine = Machine(name="m1", host="here", folder=str(folder / "there"))
        self.run = RemoteRun("run-1", [machine], reconnect=60.0)
        (self.planned,) = make_job(folder / "train.py", 1).plan.machines

    async def start(self) -> None:
        await self.run.connect()
        (member,) = self.run.members
        member.begin(self.paths, self.planned)
        self.run.started = True
        await member.start([{"rank": 0, "argv": ["sh", "-c", COUNTS]}])

    async def end(self) -> None:
        while not self.run.codes or self.run.absences.names:
            assert self.run.error is None, self.run.error
            await asyncio.sleep(0.05)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def sleep_for(seconds: float) -> None:
    """Nothing of this process runs, as in a computer that sleeps."""
    time.sleep(seconds)


def test_after_a_gap_the_run_goes_on_and_nothing_is_missed(place: Place) -> None:
    async def go() -> None:
        try:
            await place.start()
            sleep_for(1.5)
            await place.end()
        finally:
            await place.run.close()

    asyncio.run(asyncio.wait_for(go(), 60))
    assert place.run.codes == {0: 0} and not place.run.lost
    log = place.paths.log_of(0).read_text().split()
    assert log == [str(number) for number in range(1, 41)]
    first, *rest = place.run.news
    assert first.startswith("this computer slept, or this command was stopped, for")
    assert rest == ["m1 is connected again; events and logs are complete"]


def test_a_gap_that_is_too_long_leaves_the_run_to_its_machines(place: Place) -> None:
    place.run.absences.slept(70.0, leave=True)
    alone = place.run.absences.alone
    assert alone is not None and alone.exit_code == 3
    assert alone.remedy == "Follow it again: phalanx attach run-1"


def test_a_machine_that_is_cut_just_after_a_gap_is_told_of(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnect, "SETTLED", 0.2)

    async def never(timeout: float) -> None:
        await asyncio.sleep(timeout)

    async def go() -> None:
        (member,) = place.run.members
        monkeypatch.setattr(member, "reconnect", never)
        absences = place.run.absences
        absences.slept(30.0, leave=True)
        absences.wait_for(member, MachineError("m1 has not answered"), lambda error: None)
        while len(place.run.news) < 2:
            await asyncio.sleep(0.05)
        await absences.end()

    asyncio.run(asyncio.wait_for(go(), 10))
    assert place.run.news[1] == "m1 has not answered; trying for 60 s to reach it again"


def test_an_agent_that_has_ended_is_not_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnect, "SETTLED", 0.0)

    async def go() -> None:
        try:
            await place.start()
            (member,) = place.run.members
            await member.link._command._end(kill=True)
            while place.run.error is None:
                await asyncio.sleep(0.05)
        finally:
            await place.run.close()

    asyncio.run(asyncio.wait_for(go(), 60))
    assert place.run.error is not None and place.run.error.cause == (
        "the agent on m1 has ended, or is stopped"
    )
    assert set(place.run.lost) == {0} and place.run.absences.alone is None


@pytest.mark.parametrize(
    ("text", "seconds"), [("", 120.0), ("0", 0.0), ("1", 10.0), ("600", 600.0)]
)
def test_how_long_is_tried(monkeypatch: pytest.MonkeyPatch, text: str, seconds: float) -> None:
    monkeypatch.setenv("PHALANX_RECONNECT", text)
    assert reconnect_seconds() == seconds


@pytest.mark.parametrize("text", ["soon", "-1", "nan", "inf"])
def test_what_is_no_time_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("PHALANX_RECONNECT", text)
    with pytest.raises(InputError, match="PHALANX_RECONNECT must be seconds"):
        reconnect_seconds()
