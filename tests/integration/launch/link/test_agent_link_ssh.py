"""The agent on a real machine, over SSH."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from lab_machines import MakeLab, run_in
from lab_machines import lab as lab
from shipping_support import Hearing

from phalanx.core.errors import MachineError
from phalanx.lab.lab import Lab
from phalanx.launch.link.agent_link import open_agent
from phalanx.pool.blueprint import read_blueprint
from phalanx.pool.machine import Machine

pytestmark = pytest.mark.slow
FORKS = ["sh", "-c", "setsid sleep 300 & sleep 300 & echo up; wait"]
WORKERS = [{"rank": 0, "argv": FORKS}]
NOTICED_SECONDS = 30.0


@pytest.fixture(scope="module")
def made(lab: MakeLab) -> Lab:
    return lab(1)


@pytest.fixture
def machine(made: Lab, tmp_path: Path) -> Machine:
    made.write_blueprint(tmp_path / "lab.yaml")
    return read_blueprint(tmp_path / "lab.yaml").machines[0]


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(90):
            await work()

    asyncio.run(bounded())


def ours(lab: Lab) -> list[str]:
    """Processes of the agent and of its workers, from the machine's own table."""
    table = run_in(lab, "m1", ["ps", "-eo", "args"]).splitlines()
    return [line for line in table if "phalanx-agent" in line or "sleep 300" in line]


def await_nobody(lab: Lab) -> None:
    deadline = time.monotonic() + NOTICED_SECONDS
    while left := ours(lab):
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


def test_a_worker_from_start_to_end(made: Lab, machine: Machine) -> None:
    async def work() -> None:
        ended = asyncio.Event()
        log = bytearray()

        def on_tell(name: str, fields: dict[str, Any], payload: bytes) -> None:
            if name == "chunk":
                log.extend(payload)
            elif name == "exited":
                ended.set()

        async with await open_agent(machine, run="a-run", listener=Hearing(on_tell)) as link:
            assert link.address == made.machine("m1").address
            await link.ask("start", workers=[{"rank": 0, "argv": ["seq", "1", "300000"]}])
            await ended.wait()
            assert log.split() == [b"%d" % n for n in range(1, 300_001)]
            await link.ask("start", workers=WORKERS)
            assert any("phalanx-agent a-run" in line for line in ours(made))
        assert not ours(made)

    run(work)


def test_a_cut_machine_is_lost_and_empties_itself(made: Lab, machine: Machine) -> None:
    async def work() -> None:
        link = await open_agent(machine, run="r")
        await link.ask("start", workers=WORKERS)
        made.cut("m1")
        try:
            async with asyncio.timeout(60):
                while link.lost is None:
                    await asyncio.sleep(0.05)
            assert "m1" in link.lost.cause
            await link.close()
        finally:
            made.heal("m1")
        await_nobody(made)

    run(work)


def test_a_controller_that_vanishes_leaves_nobody(made: Lab, machine: Machine) -> None:
    async def work() -> None:
        link = await open_agent(machine, run="r")
        await link.ask("start", workers=WORKERS)
        await link.detach()  # though the agent was not told to go on alone
        await_nobody(made)

    run(work)


def test_a_detached_run_is_found_again(made: Lab, machine: Machine) -> None:
    async def work() -> None:
        first = await open_agent(machine, run="r", detach=True)
        pids = (await first.ask("start", workers=WORKERS))["pids"]
        await first.detach()
        async with await open_agent(machine, run="r", attach=True) as second:
            assert second.hello["workers"] == pids
        await_nobody(made)

    run(work)


def test_a_machine_without_that_python(machine: Machine) -> None:
    async def work() -> None:
        other = machine.model_copy(update={"python": "python9"})
        with pytest.raises(MachineError, match="m1 has no command 'python9'"):
            await open_agent(other, run="r")

    run(work)
