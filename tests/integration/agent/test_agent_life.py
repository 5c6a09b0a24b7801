from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from agent_process import AgentProcess, await_gone
from agent_process import agent as agent
from agent_process import new_agent as new_agent

from phalanx.agent.frames import RequestProblem, pack
from phalanx.agent.life import make_folders

FORKS = "setsid sleep 300 & echo child $!; sleep 300 & echo other $!; echo up; wait"


STUBBORN = ["sh", "-c", "trap '' TERM; echo deaf; sleep 300"]


def everybody(agent: AgentProcess, *more: list[str]) -> list[int]:
    """A worker with children in its own group and in another session, and the agent itself."""
    pids = agent.start(["sh", "-c", FORKS], *more)
    lines = agent.log_with(0, b"up\n").splitlines()
    return [*pids.values(), *(int(line.split()[1]) for line in lines[:2]), agent.pid]


def test_the_run_folder_is_for_the_user_alone(agent: AgentProcess) -> None:
    assert (agent.folder / "runs" / "test").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("part", ["", "code", "blobs"])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, part: str) -> None:
    (tmp_path / part).mkdir(exist_ok=True)
    make_folders(tmp_path, None)
    (tmp_path / part).chmod(0o1777)  # as /tmp: somebody may have put code there for us to run
    with pytest.raises(RequestProblem, match="other users can write"):
        make_folders(tmp_path, None)


@pytest.mark.parametrize("who", ["agent", "guardian"])
def test_whoever_is_killed_nobody_is_left(agent: AgentProcess, who: str) -> None:
    pids = everybody(agent)
    os.kill(agent.pid if who == "agent" else agent.guardian, signal.SIGKILL)
    await_gone(*pids, agent.guardian)


def test_a_kill_of_the_whole_group_leaves_nobody(agent: AgentProcess) -> None:
    pids = everybody(agent)
    os.killpg(agent.guardian, signal.SIGKILL)
    await_gone(*pids, agent.guardian)


def test_nobody_is_left_when_the_controller_is_gone(agent: AgentProcess) -> None:
    pids = everybody(agent)
    agent.close_input()
    await_gone(*pids, agent.guardian)
    assert agent.wait() == 0


def test_nobody_is_left_when_the_controller_falls_silent(
    new_agent: Callable[[], AgentProcess],
) -> None:
    agent = new_agent()
    agent.greet(patience=0.5)
    pids = everybody(agent)
    agent.pinging = False
    await_gone(*pids, agent.guardian)


def test_a_signal_ends_the_workers_and_their_codes_are_still_told(agent: AgentProcess) -> None:
    pids = everybody(agent, STUBBORN)
    agent.log_with(1, b"deaf\n")
    os.kill(agent.guardian, signal.SIGTERM)
    assert agent.exits(2) == {0: -signal.SIGTERM, 1: -signal.SIGKILL}
    await_gone(*pids, agent.guardian)
    assert agent.errors() == "the agent was terminated by a signal\n"


def test_leave_ends_everybody_and_is_answered(agent: AgentProcess) -> None:
    pids = everybody(agent)
    assert "answer" in agent.ask("leave", grace=0.2)
    await_gone(*pids, agent.guardian)
    assert agent.wait() == 0


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("!II", 1 << 30, 0),
        struct.pack("!II", 3, 0) + b"{a}",
        pack({"tell": "x"}),
        pack({"ask": "ping", "id": "x"}),
    ],
)
def test_a_wrong_frame_ends_the_agent(agent: AgentProcess, data: bytes) -> None:
    agent.pinging = False
    agent.write(data)
    assert agent.wait() == 4
    assert "a frame" in agent.errors()


def test_who_does_not_greet_first_is_refused(new_agent: Callable[[], AgentProcess]) -> None:
    agent = new_agent()
    agent.pinging = False
    agent.write(pack({"ask": "facts", "id": 1}))
    assert agent.wait() == 4


def test_pings_are_answered_with_the_clock(agent: AgentProcess) -> None:
    header = agent.receive()
    assert header["tell"] == "pong" and header["sent"] == 1.0 and header["mine"] > 0


@pytest.mark.parametrize("run", ["../x", "a/b", "."])
def test_a_run_that_leads_out_is_a_problem(new_agent: Callable[[], AgentProcess], run: str) -> None:
    assert "invalid run id" in new_agent().greet(run=run)["cause"]


def test_a_folder_that_cannot_be_made_is_a_problem(new_agent: Callable[[], AgentProcess]) -> None:
    answer = new_agent().greet(folder="/proc/nothing")
    assert "cannot create /proc/nothing" in answer["cause"] and "'folder'" in answer["remedy"]
