"""``phalanx tune-switch`` with a script that pretends to train, in real processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_support import TRAINING, Shell

from phalanx.core.run_folder.run_paths import RunPaths

# Holds from a switch at 0.6 on; seeds differ by more than the tolerance.
ACCURACY = """
def accuracy(epoch):
    text = settings.strategy
    point = 1.0 if text == "allreduce" else float(text.partition("=")[2] or 0)
    lucky = "unlucky" not in sys.argv or settings.seed < 1 or point == 1.0
    level = 0.9 if point > 0.55 and lucky else 0.8
    return level + 0.01 * settings.seed - 0.1 / (epoch + 1)
"""
LOGGED = 'values={"test_accuracy": 0.75}'
EPOCHS = "for epoch in range(epochs):"
SLEEP = '\n    time.sleep(0.4 if "slowly" in sys.argv else 0)'


def script(shell: Shell) -> str:
    text = TRAINING.replace(EPOCHS, ACCURACY + EPOCHS + SLEEP)
    text = text.replace(LOGGED, 'values={"test_accuracy": accuracy(epoch), "other_loss": 1.0}')
    assert (text.count("accuracy(epoch)"), text.count("slowly")) == (2, 1)
    return shell.script(text)


def test_the_earliest_point_is_found_and_confirmed(shell: Shell) -> None:
    answer = shell(
        "tune-switch", script(shell), "--workers", "2", "--epochs", "6", "--confirm", "2",
        "--seed", "3", "--json",
    )  # fmt: skip

    assert answer.code == 0, answer.err
    found = answer.json
    assert (found["point"], found["spec"], found["confirmed"]) == (0.6, "switch:at=0.6", True)
    tried = [(t["stage"], t["strategy"], t["seed"]) for t in found["tried"]]
    assert tried == [
        ("baseline", "allreduce", 3),
        ("search", "switch:at=0.5", 3),
        ("search", "switch:at=0.8", 3),
        ("search", "switch:at=0.7", 3),
        ("search", "switch:at=0.6", 3),
        ("confirm", "allreduce", 4),
        ("confirm", "switch:at=0.6", 4),
        ("confirm", "allreduce", 5),
        ("confirm", "switch:at=0.6", 5),
    ]
    assert (found["runs_to_find"], found["runs_of_the_grid"]) == (5, 11)
    text = " ".join(answer.err.split())
    assert "switch:at=0.6 is the earliest of 10 points within 0.30 points of allreduce" in text
    assert "Confirmed by 2 fresh seeds" in text
    assert "a later switch is never worse" in text
    assert text.rpartition("Use it: ")[2].startswith("--strategy switch:at=0.6")

    study = RunPaths(shell.runs / found["study"])
    record = json.loads(study.study.read_text())
    assert record["runs"] == [t["run"] for t in found["tried"]]
    assert record["findings"]["spec"] == "switch:at=0.6"
    assert Path(found["report"]) == study.report
    assert study.report.exists()


@pytest.mark.slow
def test_a_clearly_lost_run_is_ended_early_and_is_no_failure(shell: Shell) -> None:
    answer = shell(
        "tune-switch", script(shell), "--workers", "2", "--epochs", "6", "--grid", "2", "--json",
        "--", "slowly",
    )  # fmt: skip

    assert answer.code == 0, answer.err
    assert [t["strategy"] for t in answer.json["tried"]] == ["allreduce", "switch:at=0.5"]
    assert [t["stopped_early"] for t in answer.json["tried"]] == [False, True]
    assert answer.json["tried"][1]["epochs"] == 5, "the first epoch of the last third"
    assert "ended at epoch 5" in answer.err
    (stopped,) = answer.json["failures"]
    assert json.loads(RunPaths(shell.runs / stopped).summary.read_text())["status"] == "stopped"
    assert (answer.json["point"], answer.json["spec"]) == (1.0, "allreduce")
    assert "stay with --strategy allreduce" in answer.err


def test_fresh_seeds_may_refute_it(shell: Shell) -> None:
    answer = shell(
        "tune-switch", script(shell), "--workers", "2", "--confirm", "1", "--grid", "3", "--json",
        "--", "unlucky",
    )  # fmt: skip

    assert answer.code == 0
    assert (answer.json["point"], answer.json["confirmed"]) == (2 / 3, False)
    assert answer.json["spec"] is None
    assert "NOT confirmed" in answer.err
    assert "Use it" not in answer.err


def test_other_strategies_are_spelled_out(shell: Shell) -> None:
    answer = shell(
        "tune-switch", script(shell), "--workers", "2", "--from", "bsp", "--to", "ssp:bound=2",
        "--dry-run", "--json",
    )  # fmt: skip

    found = [launch["settings"]["strategy"] for launch in answer.json["launches"]]
    assert found == ["bsp", "bsp@0.5/ssp:bound=2"]
    assert not shell.runs.exists()


def test_a_metric_that_nobody_logs(shell: Shell) -> None:
    answer = shell("tune-switch", script(shell), "--workers", "2", "--metric", "bleu", "--json")

    assert answer.code == 2
    assert "'bleu' was not logged" in answer.json["error"]
    assert "test_accuracy" in answer.json["remedy"]
    assert "other_loss" in answer.json["remedy"]


def test_a_script_that_fails_ends_the_search(shell: Shell) -> None:
    answer = shell("tune-switch", script(shell), "--workers", "2", "--json", "--", "fail-allreduce")

    assert answer.code == 1
    assert answer.json["point"] is None
    assert answer.json["tried"] == []
    assert "as asked" in next(iter(answer.json["failures"].values()))


def test_ctrl_c_ends_it_in_order_and_tells_what_is_known(shell: Shell) -> None:
    words = ["tune-switch", script(shell), "--workers", "2", "--epochs", "4", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx", *words, "--", "slowly"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=shell.folder,
    )
    try:
        deadline = time.monotonic() + 60
        while len(list(shell.runs.glob("*/events/rank-0.jsonl"))) < 2:
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 130
    answer = json.loads(out.splitlines()[-1])
    assert [t["stage"] for t in answer["tried"]] == ["baseline"]
    assert answer["point"] is None
    assert answer["report"] is None
    assert "not finished" in errors
    assert re.search(r"^baseline +allreduce ", errors, re.MULTILINE)
    assert "Traceback" not in errors
