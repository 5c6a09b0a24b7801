"""Agents whose controller goes, or falls silent: it may be asleep, and what runs goes on."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable

import pytest
from agent_process import AgentProcess, await_gone, is_alive
from agent_process import new_agent as new_agent

from phalanx.agent import life
from phalanx.agent.agent import Agent
from phalanx.agent.life import CUT_OFF_CODES

COUNTS = "echo one; while ! test -e go; do sleep 0.05; done; echo two"
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
    worker = relay.start(["sh", "-c", f"{COUNTS}; exit 6"])[0]
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


# -- a controller that falls silent ----------------------------------------------------------

QUICK = {"patience": 0.5, "hold": 60.0}


def fall_silent(agent: AgentProcess) -> None:
    """Until it notices, and lets go of its pipes."""
    agent.pinging = False
    with pytest.raises(EOFError):
        while True:
            agent.receive()


def test_workers_go_on_and_the_controller_finds_all_they_wrote(new_agent: NewAgent) -> None:
    asleep = new_agent()
    asleep.greet(**QUICK)
    worker = asleep.start(["sh", "-c", f"{COUNTS}; sleep 300"])[0]
    asleep.log_with(0, b"one\n")
    fall_silent(asleep)
    (asleep.folder / "runs" / "test" / "go").touch()
    again = new_agent()
    assert again.greet(attach=True, **QUICK)["workers"] == {"0": worker}
    again.files["logs/rank-0.log"] = bytearray(b"one\n")
    again.ask("resume_tails", offsets={"logs/rank-0.log": 4})
    assert again.log_with(0, b"two\n") == b"one\ntwo\n"
    again.pinging = False
    os.kill(again.guardian, signal.SIGKILL)  # now it is gone, and so is the run
    await_gone(worker, asleep.pid, asleep.guardian)


def test_it_may_fall_silent_again(new_agent: NewAgent) -> None:
    first = new_agent()
    first.greet(**QUICK)
    worker = first.start(["sleep", "300"])[0]
    fall_silent(first)
    for _ in range(2):
        again = new_agent()
        assert again.greet(attach=True, **QUICK)["workers"] == {"0": worker}
        fall_silent(again)
    assert is_alive(worker)
    last = new_agent()
    last.greet(attach=True)
    last.ask("leave", grace=0)
    await_gone(worker, first.pid)


def test_without_workers_there_is_nothing_to_come_back_for(new_agent: NewAgent) -> None:
    agent = new_agent()
    agent.greet(**QUICK)
    agent.pinging = False
    await_gone(agent.pid, agent.guardian)
    assert not (agent.folder / "runs" / "test").exists()


def test_a_machine_that_is_cut_off_is_left_in_time(new_agent: NewAgent) -> None:
    """Its workers miss the others, and nobody comes."""
    agent = new_agent()
    agent.greet(patience=0.5, hold=1.0)
    agent.start(["sh", "-c", "while ! test -e go; do sleep 0.05; done; exit 3"])
    fall_silent(agent)
    assert is_alive(agent.pid)
    (agent.folder / "runs" / "test" / "go").touch()
    await_gone(agent.pid, agent.guardian)


@pytest.mark.parametrize("runs", [True, False])
def test_who_fetches_the_rest_is_made_way_for(new_agent: NewAgent, runs: bool) -> None:
    asleep = new_agent()
    asleep.greet(**QUICK)
    worker = asleep.start(["sh", "-c", "while ! test -e go; do sleep 0.05; done"])[0]
    fall_silent(asleep)
    if runs:
        assert new_agent().greet()["cause"] == "this run is still running here"
        assert is_alive(worker) and is_alive(asleep.pid)
    (asleep.folder / "runs" / "test" / "go").touch()
    await_gone(worker)
    other = new_agent()
    while "cause" in (answer := other.greet()):  # it may not have noticed yet
        other = new_agent()
    assert answer["pid"] != asleep.pid
    await_gone(asleep.pid)


GOES_ON_ALONE = """
echo '{"type":"settled","lost":0}' > events/rank-0.jsonl
while ! test -e go; do sleep 0.05; done
echo '{"type":"lost","time":1.0,"rank":0,"worker":1}' >> events/rank-0.jsonl
sleep 300
"""


def test_workers_that_ended_for_others_are_not_waited_for(new_agent: NewAgent) -> None:
    """One of them may have trained to its end."""
    assert set(CUT_OFF_CODES) >= {3, 75, 143}
    agent = new_agent()
    agent.greet(patience=0.5, hold=1.0)
    waits = "while ! test -e go; do sleep 0.05; done"
    agent.start(["sh", "-c", f"{waits}; exit 75"], ["sh", "-c", waits])
    fall_silent(agent)
    (agent.folder / "runs" / "test" / "go").touch()
    await_gone(agent.pid, agent.guardian)


def test_workers_that_go_on_alone_are_ended_also_under_another_run(new_agent: NewAgent) -> None:
    """The machine was cut off: the run has ended elsewhere, and the next one is here already."""
    agent = new_agent()
    agent.greet(patience=0.5, hold=1.0)
    worker = agent.start(["sh", "-c", GOES_ON_ALONE])[0]
    fall_silent(agent)
    following = new_agent()
    following.greet(run="next")
    other = following.start(["sleep", "300"])[0]
    (agent.folder / "runs" / "test" / "go").touch()
    await_gone(worker, agent.pid, agent.guardian)
    assert is_alive(following.pid) and is_alive(other)


def test_a_loss_before_the_silence_ends_nothing(new_agent: NewAgent) -> None:
    """The others went on without that machine; now it is the controller that sleeps."""
    agent = new_agent()
    agent.greet(patience=0.5, hold=1.0)
    worker = agent.start(["sh", "-c", GOES_ON_ALONE])[0]
    (agent.folder / "runs" / "test" / "go").touch()
    events = agent.folder / "runs" / "test" / "events" / "rank-0.jsonl"
    while b'"type":"lost"' not in (events.read_bytes() if events.exists() else b""):
        time.sleep(0.02)
    seen = len(agent.told)
    while sum(told["tell"] == "pong" for told in agent.told[seen:]) < 5:
        agent.receive()
    fall_silent(agent)
    time.sleep(1.5)  # more than it waits for where a machine is cut off
    assert new_agent().greet(attach=True)["workers"] == {"0": worker}
