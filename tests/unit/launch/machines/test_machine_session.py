from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from launch_support import make_job

from phalanx.core.errors import MachineError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.launchers.remote_run import RemoteRun
from phalanx.pool.machine import Machine


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
