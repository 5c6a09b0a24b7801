from __future__ import annotations

import signal
import time
from pathlib import Path

from agent_process import AgentProcess, await_gone, is_alive
from agent_process import agent as agent
from agent_process import new_agent as new_agent


def sh(script: str) -> list[str]:
    return ["sh", "-c", script]


def pids_in(log: str) -> list[int]:
    return [int(line.split()[1]) for line in log.splitlines()]


def test_exit_codes_and_logs_arrive(agent: AgentProcess) -> None:
    agent.start(sh("echo out; echo err >&2; exit 3"), sh("kill -KILL $$"), sh("true"))
    assert agent.exits(3) == {0: 3, 1: -signal.SIGKILL, 2: 0}
    assert agent.log(0) == b"out\nerr\n"


def test_the_rest_of_a_rank_comes_before_its_end(agent: AgentProcess) -> None:
    script = "echo last words > logs/rank-0.traceback; seq 1 200000; echo e > events/rank-0.jsonl"
    agent.start(sh(script))
    agent.exits(1)
    assert agent.told[-1]["tell"] == "exited"
    assert agent.log(0).split() == [b"%d" % n for n in range(1, 200_001)]
    assert agent.files["logs/rank-0.traceback"] == b"last words\n"
    assert agent.files["events/rank-0.jsonl"] == b"e\n"


def test_a_link_in_place_of_a_file_is_not_followed(agent: AgentProcess) -> None:
    agent.start(sh("ln -s /etc/hostname events/rank-0.jsonl"))
    assert agent.exits(1) == {0: 0}
    assert "events/rank-0.jsonl" not in agent.files


def test_a_worker_knows_its_agent_and_its_own_variables(agent: AgentProcess) -> None:
    before = time.monotonic()
    env = {"SHOWN": "a b", "HOME": None}
    script = 'echo "$PPID $PHALANX_CONTROLLER $SHOWN ${HOME-none} $PHALANX_STARTED"; pwd'
    agent.start(sh(script), env=env, cwd="files")
    agent.exits(1)
    words, where = agent.log(0).decode().splitlines()
    assert words.split()[:5] == [str(agent.pid), str(agent.pid), "a", "b", "none"]
    assert before <= float(words.split()[5]) <= time.monotonic()
    assert where == str(agent.folder / "runs" / "test" / "files")


def test_words_of_a_command_stay_as_they_are(agent: AgentProcess) -> None:
    agent.start(["printf", "%s|", "a b", "$(id)", "ü;'\"", "-c"])
    agent.exits(1)
    assert agent.log(0).decode() == "a b|$(id)|ü;'\"|-c|"


def test_a_program_that_is_not_there(agent: AgentProcess) -> None:
    agent.start(["no-such-program", "x"])
    assert agent.exits(1) == {0: 127}
    said = agent.log(0)
    assert said == b"phalanx: cannot start no-such-program: No such file or directory\n"


def test_stop_asks_first_and_then_ends_the_whole_group(agent: AgentProcess) -> None:
    polite = sh("trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.02; done")
    stubborn = sh("trap '' TERM; sleep 300 & echo $! ready; wait; sleep 300")
    agent.start(polite, stubborn)
    agent.log_with(0, b"ready\n")
    child = int(agent.log_with(1, b"ready\n").split()[0])
    assert "problem" not in agent.ask("stop", grace=0.5)
    assert agent.exits(2) == {0: 5, 1: -signal.SIGKILL}
    assert agent.log(0).endswith(b"bye\n")
    await_gone(child)


def test_only_the_worker_is_asked_to_stop(agent: AgentProcess) -> None:
    """What reads its data is needed until it has saved."""
    reads = "trap 'echo asked' TERM; echo reads; while :; do sleep 0.1; done"
    worker = f'trap "sleep 0.5; echo saved; exit 0" TERM; sh -c "{reads}" & wait'
    agent.start(sh(worker))
    assert agent.log_with(0, b"reads\n") == b"reads\n"
    assert "problem" not in agent.ask("stop", grace=10)
    assert agent.exits(1) == {0: 0}
    assert agent.log(0) == b"reads\nsaved\n"


def test_kill_does_not_ask(agent: AgentProcess) -> None:
    agent.start(sh("trap 'exit 0' TERM; echo ready; sleep 300"))
    agent.log_with(0, b"ready\n")
    agent.ask("stop", grace=0)
    assert agent.exits(1) == {0: -signal.SIGKILL}


def test_a_worker_takes_its_group_along_and_the_last_one_every_orphan(agent: AgentProcess) -> None:
    script = "setsid sleep 300 & echo child $!; sleep 300 & echo other $!; sleep 0.2"
    agent.start(sh(script))
    agent.exits(1)
    await_gone(*pids_in(agent.log(0).decode()))
    assert is_alive(agent.pid)


def test_orders_that_cannot_be_followed_are_problems(agent: AgentProcess) -> None:
    agent.start(sh("sleep 300"))
    for wrong, words in (
        ({"rank": 0, "argv": ["true"]}, "rank 0 is already running"),
        ({"rank": 1, "argv": ["true"], "cwd": "nowhere"}, "cannot start rank 1"),
        ({"rank": 1, "argv": "true"}, "invalid 'argv'"),
        ({"rank": 1, "argv": []}, "cannot start rank 1"),
        ({"rank": 1, "argv": ["true"], "env": {"A": 1}}, "cannot start rank 1"),
        ({"rank": 1, "argv": ["true"], "log": "../../x"}, "unsafe path"),
        ("x", "invalid worker"),
    ):
        assert words in agent.ask("start", workers=[wrong])["cause"]
    assert "unknown request" in agent.ask("dance")["cause"]


def test_a_flood_of_output_neither_fills_memory_nor_stops_the_pings(agent: AgentProcess) -> None:
    agent.start(sh("head -c 16000000 /dev/zero; echo done; sleep 300"))
    log = agent.folder / "runs" / "test" / "logs" / "rank-0.log"
    while not (log.exists() and log.stat().st_size > 16_000_000):
        time.sleep(0.05)
    time.sleep(0.5)  # nobody reads: what waits must not grow
    status = Path(f"/proc/{agent.pid}/status").read_text()
    assert int(status.partition("VmRSS:")[2].split()[0]) < 50_000
    assert len(agent.log_with(0, b"done\n")) == 16_000_005


def test_ports_are_free_and_differ(agent: AgentProcess) -> None:
    ports = agent.ask("free_ports", address="127.0.0.1", count=20)["ports"]
    assert len(set(ports)) == 20 and all(1024 <= port < 65536 for port in ports)
    assert (
        "cannot listen on 192.0.2.1"
        in agent.ask("free_ports", address="192.0.2.1", count=1)["cause"]
    )
