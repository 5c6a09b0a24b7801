from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable

import pytest
from agent_process import AgentProcess, await_gone, is_alive
from agent_process import new_agent as new_agent

from phalanx.agent import life
from phalanx.agent.agent import Agent

COUNTS = "echo one; while ! test -e go; do sleep 0.05; done; echo two; exit 6"
NewAgent = Callable[[], AgentProcess]


@pytest.fixture
def relay(new_agent: NewAgent) -> AgentProcess:
    one = new_agent()
    one.greet(detach=True)
    return one


def leave_alone(relay: AgentProcess) -> None:
    relay.pinging = False
    os.kill(relay.guardian, signal.SIGKILL)
    relay.wait()


def test_a_detached_run_goes_on_and_is_found_again(
    relay: AgentProcess, new_agent: NewAgent
) -> None:
    worker = relay.start(["sh", "-c", COUNTS])[0]
    relay.log_with(0, b"one\n")
    leave_alone(relay)
    assert is_alive(worker) and is_alive(relay.pid)

    again = new_agent()
    assert again.greet(attach=True)["workers"] == {"0": worker}
    (relay.folder / "runs" / "test" / "go").touch()
    again.files["logs/rank-0.log"] = bytearray(b"one\n")
    again.ask("resume_tails", offsets={"logs/rank-0.log": 4})
    assert again.exits(1) == {0: 6}
    assert again.log(0) == b"one\ntwo\n"
    leave_alone(again)

    last = new_agent()
    assert last.greet(attach=True)["codes"] == {"0": 6}
    last.ask("resume_tails", offsets={})
    assert last.exits(1) == {0: 6}
    assert last.log(0) == b"one\ntwo\n"
    last.ask("leave")
    await_gone(relay.pid)


def test_silence_does_not_end_a_detached_run(new_agent: NewAgent) -> None:
    relay = new_agent()
    relay.greet(detach=True, patience=0.3)
    worker = relay.start(["sleep", "300"])[0]
    relay.pinging = False
    with pytest.raises(EOFError):
        while True:
            relay.receive()
    again = new_agent()
    again.greet(attach=True)
    assert is_alive(worker)
    again.ask("leave", grace=0)
    await_gone(relay.pid, worker)


def test_a_signal_ends_a_detached_agent_and_its_workers(relay: AgentProcess) -> None:
    worker = relay.start(["sleep", "300"])[0]
    leave_alone(relay)
    os.kill(relay.pid, signal.SIGTERM)
    await_gone(relay.pid, worker)


def test_one_run_has_one_agent(relay: AgentProcess, new_agent: NewAgent) -> None:
    assert "already has an agent on this machine" in new_agent().greet(detach=True)["cause"]
    relay.ask("leave")


def test_an_agent_without_work_and_visitors_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "LINGER", 0.0)
    agent = Agent({})
    agent.workers.codes[0] = 0
    with socket.socket(socket.AF_UNIX) as listener:
        assert life._next_visitor(agent, listener) is None


def test_a_run_whose_agent_is_gone_is_told_so(relay: AgentProcess, new_agent: NewAgent) -> None:
    relay.start(["true"])
    relay.exits(1)
    leave_alone(relay)
    os.kill(relay.pid, signal.SIGKILL)
    await_gone(relay.pid)
    assert new_agent().greet(attach=True)["gone"]


def test_an_agent_that_never_started_anybody_goes_with_its_controller(new_agent: NewAgent) -> None:
    relay = new_agent()
    relay.greet(detach=True, patience=0.3)
    leave_alone(relay)
    await_gone(relay.pid)
    assert not (relay.folder / "runs" / "test").exists()


def test_a_run_that_never_began_leaves_no_folder(new_agent: NewAgent) -> None:
    agent = new_agent()
    agent.greet()
    agent.ask("leave")
    await_gone(agent.pid)
    assert not (agent.folder / "runs" / "test").exists()
