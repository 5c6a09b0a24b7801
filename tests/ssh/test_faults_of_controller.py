"""The controller is killed or asked to stop; its machines are empty soon after."""

from __future__ import annotations

import re
import signal

import pytest
from commands import until
from ssh_runs import Bench, nothing_left, processes

GOING = r"epoch\s+2/"
UNUSED = "def unused(): phalanx.fit()\n"
"""A script that never trains is refused before anything is started."""


def test_killed_while_it_trains(bench: Bench) -> None:
    running = bench.train()
    running.until(GOING)
    running.signal(signal.SIGKILL)
    running.end()
    nothing_left(bench.lab, "m1", "m2")
    status = bench.do("runs")
    assert re.search(r"train\S*\s.*lost", status.text), status.text


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130)])
def test_ended_while_it_connects(bench: Bench, number: signal.Signals, code: int) -> None:
    running = bench.train()
    until(lambda: bool(processes(bench.lab, "m1")))
    running.signal(number)
    assert running.end().code == code
    nothing_left(bench.lab, "m1", "m2")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_asked_once_it_leaves_a_checkpoint_to_go_on_from(
    bench: Bench, number: signal.Signals
) -> None:
    running = bench.train("--checkpoint-every", "1000")
    running.until(GOING)
    running.signal(number)
    ended = running.end()
    nothing_left(bench.lab, "m1", "m2")
    assert ended.code == 130
    first = bench.summary()
    assert first["status"] == "stopped"
    assert None not in first["exit_codes"]
    epochs = len(first["history"])
    assert list((bench.latest() / "checkpoints").iterdir())
    resumed = bench.do("resume", first["run"], "--epochs", str(epochs + 2))
    nothing_left(bench.lab, "m1", "m2")
    assert resumed.code == 0
    then = bench.summary()
    assert then["run"] != first["run"]
    assert (then["status"], then["exit_codes"]) == ("done", [0, 0])
    shown = [int(number) for number in re.findall(r"^epoch\s+(\d+)/", resumed.text, re.MULTILINE)]
    assert shown == [epochs + 1, epochs + 2]


def test_asked_twice_it_ends_at_once(bench: Bench) -> None:
    (bench.project / "train.py").write_text(
        f"{UNUSED}import signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('epoch 2/ of nothing', flush=True)\ntime.sleep(1000)\n"
    )
    running = bench.train()
    running.until(GOING)
    running.signal(signal.SIGINT)
    with pytest.raises(AssertionError, match="still running"):
        running.end(2.0)  # the workers do not heed it, and have ten seconds
    running.signal(signal.SIGINT)
    ended = running.end()
    nothing_left(bench.lab, "m1", "m2")
    assert ended.code == 130
    first, second = bench.summary()["exit_codes"]
    assert first == -9
    assert second in (-9, -15), "it may not have come to its own handler"


def test_one_of_two_runs_is_killed_and_the_other_goes_on(bench: Bench) -> None:
    one = bench.train("--name", "one")
    one.until(GOING)
    other = bench.train("--name", "other", "--strategy", "async", epochs=30)
    other.until(GOING)
    one.signal(signal.SIGKILL)
    one.end()
    ended = other.end(180)
    nothing_left(bench.lab, "m1", "m2")
    assert ended.code == 0


def test_the_exit_codes_of_remote_scripts(bench: Bench) -> None:
    (bench.project / "train.py").write_text(
        f"{UNUSED}import os, sys, time\n"
        "if os.environ['PHALANX_RANK'] == '1':\n    sys.exit(41)\n"
        "time.sleep(60)\n"
    )
    ended = bench.train().end()
    nothing_left(bench.lab, "m1", "m2")
    assert ended.code == 1
    assert "worker 1 on m2 exited with code 41" in ended.words
    assert bench.summary()["exit_codes"] == [-15, 41]
