"""The samples of a machine come home once each, whichever controllers there were."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from launch_support import FIGURES, make_job

from phalanx.agent.machine.sampling import FILE
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.launchers.remote_run import RemoteRun
from phalanx.launch.machines import machine_session as member_module
from phalanx.launch.machines import remote_files as homecoming
from phalanx.launch.machines.remote_files import MachineFile
from phalanx.observe.machines.monitor import SampleReader, ToldSample
from phalanx.observe.summary.run_records import read_samples
from phalanx.pool.machine import Machine


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    return RunPaths(tmp_path / "run-1").make()


def told(moment: float) -> ToldSample:
    sample = SampleReader().read({**FIGURES, "time": moment}, clock_offset=50.0)
    assert sample is not None
    return sample


def test_a_line_that_was_not_ended_comes_again(paths: RunPaths) -> None:
    before = MachineFile(paths.machine("m1"))
    assert before.last() is None
    before.add(told(1.0))
    before.add(told(2.0))
    with paths.machine("m1").open("rb+") as file:
        file.truncate(paths.machine("m1").stat().st_size - 5)
    after = MachineFile(paths.machine("m1"))
    assert after.last() == told(1.0)
    after.add(told(2.0))
    assert [sample.time for sample in read_samples(paths)["m1"]] == [51.0, 52.0]


@pytest.mark.parametrize("old", [b'{"time": 1.0}\n', b"[\n", b"\n", b"{", b""])
def test_files_without_the_machine_s_clock_say_nothing(paths: RunPaths, old: bytes) -> None:
    paths.machine("m1").write_bytes(old)
    assert MachineFile(paths.machine("m1")).last() is None


def test_a_machine_does_not_fill_the_disk(paths: RunPaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homecoming, "LARGEST", 1000)
    for _ in range(2):
        file = MachineFile(paths.machine("m1"))
        for number in range(100):
            file.add(told(float(number)))
    assert 500 < paths.machine("m1").stat().st_size <= 1000


def test_a_machine_that_repeats_itself_is_not_heard_twice(paths: RunPaths) -> None:
    MachineFile(paths.machine("m1")).add(told(5.0))
    machine = Machine(name="m1", host="192.0.2.1")
    (member,) = RemoteRun("run-1", [machine], attach=True).members
    member.samples = MachineFile(paths.machine("m1"))
    assert member.samples.go_on() == 5.0
    for moment in (4.0, 5.0, 6.0, 6.0, 3.0):
        member.on_tell("sample", {**FIGURES, "time": moment}, b"")
    assert [sample.time for sample in read_samples(paths)["m1"]] == [55.0, 56.0]


def test_samples_that_are_late_do_not_end_a_run(
    paths: RunPaths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = Machine(name="m1", host="here", folder=str(tmp_path / "there"))
    (planned,) = make_job(tmp_path / "train.py", 1).plan.machines

    async def go() -> RemoteRun:
        run = RemoteRun("run-1", [machine], detach=True)
        await run.connect()
        (member,) = run.members
        try:
            member.begin(paths, planned)
            await member.start([{"rank": 0, "argv": ["sleep", "300"]}])
            monkeypatch.setattr(member_module, "SAMPLES_SECONDS", 0.0)
            await member.rejoin()
            assert member.alive
        finally:  # it is detached: nothing else ends it
            await run.close()
        return run

    run = asyncio.run(asyncio.wait_for(go(), 60))
    assert any("did not answer 'sample'" in text for text in run.news)


def test_a_detached_run_is_left_and_rejoined(paths: RunPaths, tmp_path: Path) -> None:
    machine = Machine(name="m1", host="here", folder=str(tmp_path / "there"))
    job = make_job(tmp_path / "train.py", 1)
    (planned,) = job.plan.machines
    there = tmp_path / "there/runs/run-1" / FILE

    async def grown(count: int) -> None:
        while len(there.read_bytes().splitlines()) < count:
            await asyncio.sleep(0.05)

    async def enter(*, attach: bool) -> RemoteRun:
        run = RemoteRun("run-1", [machine], detach=not attach, attach=attach)
        await run.connect()
        (member,) = run.members
        member.samples = MachineFile(paths.machine("m1"))
        member.begin(paths, planned)
        member.samples.clock_to_run = 1000.0 * (1 + attach)  # this machine was restarted meanwhile
        if attach:
            await member.rejoin()
        else:
            await member.start([{"rank": 0, "argv": ["sleep", "300"]}])
        return run

    async def go() -> None:
        run = await enter(attach=False)
        try:
            await grown(1)
            while not paths.machine("m1").exists():  # else the next session's clock is the first
                await asyncio.sleep(0.05)
            for count in (3, 5):
                await run.leave()
                await grown(count)
                kept = [json.loads(line)["time"] for line in there.read_bytes().splitlines()]
                run = await enter(attach=True)
                home = [json.loads(line) for line in paths.machine("m1").read_bytes().splitlines()]
                assert [sample["at"] for sample in home][: len(kept)] == kept
        finally:
            await run.close()
        assert [sample["time"] - sample["at"] for sample in home] == [pytest.approx(1000)] * len(
            home
        )

    asyncio.run(asyncio.wait_for(go(), 90))
