from __future__ import annotations

import asyncio
import functools
import os
import signal
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agent_process import is_alive
from shipping_support import Hearing

from phalanx.core.errors import MachineError
from phalanx.launch.link import progress_notes as waiting
from phalanx.launch.link.agent_link import AgentLink, open_agent
from phalanx.pool.machine import Machine

SECONDS = 20.0


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(name="mine", host="here", folder=str(tmp_path / "phalanx"))


@asynccontextmanager
async def opened(machine: Machine, **options: Any) -> AsyncIterator[AgentLink]:
    async with asyncio.timeout(SECONDS), await open_agent(machine, run="r", **options) as link:
        yield link


def asynchronous(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that is a coroutine."""

    @functools.wraps(test)
    def run(*given: Any, **named: Any) -> None:
        asyncio.run(test(*given, **named))

    return run


async def loss_of(link: AgentLink) -> MachineError:
    while link.lost is None:
        await asyncio.sleep(0.01)
    return link.lost


def with_python(tmp_path: Path, script: str) -> Machine:
    """This machine, where Python is something else."""
    file = tmp_path / "python"
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return Machine(name="mine", host="here", python=str(file))


@asynchronous
async def test_asks_are_answered_and_what_is_told_is_heard(machine: Machine) -> None:
    ended = asyncio.Event()
    heard: list[tuple[str, dict[str, Any], bytes]] = []

    def on_tell(name: str, fields: dict[str, Any], payload: bytes) -> None:
        heard.append((name, fields, payload))
        if name == "exited":
            ended.set()

    async with opened(machine, listener=Hearing(on_tell)) as link:
        assert link.address is None
        answers = await asyncio.gather(
            *(link.ask("free_ports", address="127.0.0.1", count=n) for n in range(8))
        )
        assert [len(answer["ports"]) for answer in answers] == list(range(8))
        await link.ask("start", workers=[{"rank": 4, "argv": ["echo", "hello"]}])
        await ended.wait()
        assert heard[0][0] == "chunk" and heard[0][2] == b"hello\n"
        assert heard[-1][1]["rank"] == 4 and heard[-1][1]["code"] == 0
        assert abs(link.clock_offset) < 1.0  # one machine, one clock
    assert not is_alive(link.hello["pid"])


@asynchronous
async def test_a_problem_names_the_machine_and_the_link_goes_on(machine: Machine) -> None:
    async with opened(machine) as link:
        with pytest.raises(MachineError, match="mine: unknown request 'dance'"):
            await link.ask("dance")
        assert await link.ask("free_ports", address="127.0.0.1", count=1)
        assert link.lost is None


@asynchronous
async def test_no_answer_in_time_is_an_error(machine: Machine) -> None:
    async with opened(machine) as link:
        os.kill(link.hello["pid"], signal.SIGSTOP)
        with pytest.raises(MachineError, match="mine did not answer 'facts' within 0 seconds"):
            await link.ask("facts", timeout=0.1)
        os.kill(link.hello["pid"], signal.SIGCONT)


@asynchronous
async def test_what_takes_long_is_told_and_ends_without_progress(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent goes on answering pings, and never answers what it was asked."""
    monkeypatch.setattr(waiting, "FIRST_WORD", 0.05)
    monkeypatch.setattr(waiting, "EACH_WORD", 0.05)
    sleepy = with_python(tmp_path, "exec sleep 300").python
    said: list[str] = []

    async with opened(machine, listener=Hearing(say=said.append)) as link:
        with pytest.raises(
            MachineError, match="mine has made no progress for 1 seconds: making an environment"
        ):
            await link.ask(
                "environment", timeout=1.0, doing=lambda: "making an environment",
                python=sleepy, digest="a" * 64, steps=[],
            )  # fmt: skip
        assert link.lost is None
        assert await link.ask("free_ports", address="127.0.0.1", count=1)

    assert len(said) > 1 and set(said) == {"waiting for mine: making an environment"}


@asynchronous
async def test_a_long_wait_can_be_given_up(machine: Machine, tmp_path: Path) -> None:
    sleepy = with_python(tmp_path, "exec sleep 300").python

    async with opened(machine) as link:
        fields = {"python": sleepy, "digest": "a" * 64, "steps": []}
        ask = link.ask("environment", timeout=600.0, doing=lambda: "it", **fields)
        waits = asyncio.create_task(ask)
        await asyncio.sleep(0.1)
        waits.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waits
        assert link.lost is None


@asynchronous
async def test_a_killed_agent_loses_the_machine_and_every_waiting_ask(machine: Machine) -> None:
    lost: list[MachineError] = []
    async with opened(machine, listener=Hearing(lost=lost.append)) as link:
        waiting = asyncio.create_task(
            link.ask("start", workers=[{"rank": 0, "argv": ["sleep", "300"]}])
        )
        worker = int((await waiting)["pids"]["0"])
        os.kill(link.hello["pid"], signal.SIGSTOP)
        waiting = asyncio.create_task(link.ask("facts"))
        await asyncio.sleep(0)
        os.kill(link.hello["pid"], signal.SIGKILL)
        with pytest.raises(MachineError, match="the agent on mine ended: it was killed by SIGKILL"):
            await waiting
        assert await loss_of(link) is link.lost is lost[0]
        assert not is_alive(worker)
        with pytest.raises(MachineError, match="ended"):
            await link.ask("facts")


@asynchronous
async def test_an_agent_that_says_nothing_is_lost(machine: Machine) -> None:
    async with opened(machine, patience=1.0) as link:
        os.kill(link.hello["pid"], signal.SIGSTOP)
        error = await loss_of(link)
        assert error.cause == "mine has not answered for 1 seconds"
        os.kill(link.hello["pid"], signal.SIGCONT)


@asynchronous
async def test_what_is_no_frame_loses_the_machine(tmp_path: Path) -> None:
    other = with_python(tmp_path, "echo Welcome to this machine; sleep 1")

    with pytest.raises(MachineError, match="mine sent unexpected output: a frame is too"):
        await open_agent(other, run="r")


@asynchronous
@pytest.mark.parametrize(
    "script, said",
    [
        ("echo 'Segmentation \033[31mfault' >&2; exit 3", "ended: Segmentation  .31mfault"),
        ("exit 127", "mine has no command"),
        ("echo 'needs more' >&2; exit 9", "mine: needs more"),
    ],
)
async def test_an_agent_that_does_not_start_says_why(
    tmp_path: Path, script: str, said: str
) -> None:
    with pytest.raises(MachineError, match=said):
        await open_agent(with_python(tmp_path, script), run="r")


@asynchronous
async def test_a_listener_that_fails_loses_the_machine(machine: Machine) -> None:
    def on_tell(name: str, fields: dict[str, Any], payload: bytes) -> None:
        raise KeyError("samples")

    async with opened(machine, listener=Hearing(on_tell)) as link:
        await link.ask("start", workers=[{"rank": 0, "argv": ["true"]}])
        assert "sent unexpected output: KeyError" in (await loss_of(link)).cause


@asynchronous
async def test_a_detached_agent_outlives_its_link(machine: Machine) -> None:
    async with asyncio.timeout(SECONDS):
        first = await open_agent(machine, run="r", detach=True)
        workers = [{"rank": 0, "argv": ["sleep", "300"]}]
        worker = int((await first.ask("start", workers=workers))["pids"]["0"])
        await first.detach()
        assert is_alive(worker)
    async with opened(machine, attach=True) as second:
        assert second.hello["pid"] == first.hello["pid"]
        assert second.hello["workers"] == {"0": worker}
    assert not is_alive(worker)
