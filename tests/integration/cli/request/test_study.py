"""``run`` and ``compare`` with a script that pretends to train, in real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from cli_support import Shell
from hypothesis import given
from hypothesis import strategies as st

from phalanx.cli.request.study import alternating, in_question
from phalanx.cli.verbs.compare import rows
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.spec import parse_specs
from phalanx.launch.run.controller import RunOutcome
from phalanx.observe.summary.summary import Summary

STRATEGIES = st.lists(st.sampled_from(["single", "allreduce", "async"]), min_size=1, unique=True)
BATCHES = st.lists(st.sampled_from([64, 128, 256]), min_size=1, unique=True)


@given(STRATEGIES, BATCHES, st.integers(1, 4))
def test_the_matrix_has_every_combination_once_per_repeat(
    strategies: list[str], batches: list[int], repeat: int
) -> None:
    cells = alternating([(s, "phalanx", "") for s in strategies], list(batches), repeat)

    assert Counter((c.strategy, c.batch, c.repeat) for c in cells) == Counter(
        (s, b, r) for s in strategies for b in batches for r in range(repeat)
    )
    assert [c.repeat for c in cells] == sorted(c.repeat for c in cells), "repeat is the outer loop"
    size = len(strategies) * len(batches)
    order = [
        [(c.strategy, c.batch) for c in cells[i * size : (i + 1) * size]] for i in range(repeat)
    ]
    assert all(later == earlier[::-1] for earlier, later in pairwise(order))


def test_single_is_the_first_row_unless_it_is_left_out() -> None:
    assert rows(parse_specs("async,single"), single=True) == ["single", "async"]
    assert rows(parse_specs("allreduce,async"), single=True) == ["single", "allreduce", "async"]
    assert rows(parse_specs("allreduce,async"), single=False) == ["allreduce", "async"]


def test_run_gives_words_to_the_script_and_its_summary_to_json(shell: Shell) -> None:
    answer = shell(
        "run", shell.script(), "--workers", "2", "--epochs", "3", "--json", "--", "--json", "x y"
    )

    assert answer.code == 0
    assert len(answer.out.splitlines()) == 1
    assert answer.json["status"] == "done"
    assert answer.json["workers"] == 2
    assert answer.json["epochs"] == 3
    assert answer.json["test_accuracy"] == 0.75
    assert "words: ['--json', 'x y']" in answer.err
    assert "epoch 3/3" in answer.err
    assert "note: rate divided by the workers" in answer.err
    launch = json.loads(RunPaths(shell.runs / answer.json["run"]).launch.read_text())
    assert launch["command"][-3:] == ["--", "--json", "x y"]


def test_compare_marks_what_failed_and_goes_on(shell: Shell) -> None:
    answer = shell(
        "compare", shell.script(), "--strategies", "allreduce,async", "--workers", "2",
        "--json", "--", "fail-allreduce",
    )  # fmt: skip

    assert answer.code == 1
    found = [(run["strategy"], run["status"]) for run in answer.json["runs"]]
    assert found == [("single", "done"), ("allreduce", "failed"), ("async", "done")]
    (failed,) = answer.json["failures"]
    assert "allreduce" in failed
    assert "as asked" in answer.json["failures"][failed]

    study = json.loads(RunPaths(shell.runs / answer.json["study"]).study.read_text())
    assert study["runs"] == [run["run"] for run in answer.json["runs"]]
    assert study["command"][:3] == ["phalanx", "compare", "train.py"]
    assert Path(answer.json["report"]).exists()


def test_every_row_has_the_same_global_batch_and_every_repeat_its_seed(shell: Shell) -> None:
    answer = shell(
        "compare", shell.script(), "--strategies", "async", "--workers", "3",
        "--batch", "48", "--repeat", "2", "--seed", "5", "--dry-run", "--json",
    )  # fmt: skip

    settings = [launch["settings"] for launch in answer.json["launches"]]
    assert {s["batch"] for s in settings} == {48}
    assert [(s["strategy"], s["seed"]) for s in settings] == [
        ("single", 5), ("async", 5), ("async", 6), ("single", 6),
    ]  # fmt: skip


def test_ctrl_c_ends_a_study_at_once_and_it_can_be_reported(shell: Shell) -> None:
    words = ["compare", shell.script(), "--workers", "2", "--json", "--", "hang"]
    process = subprocess.Popen(
        [sys.executable, "-m", "phalanx", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=shell.folder,
    )
    try:
        deadline = time.monotonic() + 30
        while not list(shell.runs.glob("*/events/rank-0.jsonl")):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        out, errors = process.communicate(timeout=180)
    finally:
        process.kill()
        process.wait()

    assert process.returncode == 130
    answer = json.loads(out.splitlines()[-1])
    assert [run["status"] for run in answer["runs"]] == ["stopped"]
    assert "Traceback" not in errors
    assert answer["report"] is None, "drawing would take seconds"
    study = answer["study"]
    assert f"phalanx report {study}" in errors
    assert not RunPaths(shell.runs / study).report.exists()
    assert shell("report", study).code == 0
    assert RunPaths(shell.runs / study).report.exists()


def test_the_demo_compares_single_first_with_two_workers(shell: Shell) -> None:
    answer = shell("demo", "--dry-run", "--json")

    found = [(x["settings"]["strategy"], len(x["workers"])) for x in answer.json["launches"]]
    assert found == [("single", 1), ("allreduce", 2), ("async", 2), ("switch:at=0.5", 2)]
    script = Path(answer.json["launches"][0]["script"])
    assert "phalanx.fit(" in script.read_text() and "Conv2d" in script.read_text()


def test_the_demo_ends_with_what_to_do_next(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.cli.verbs.compare.compare_checked", lambda *_: 0)
    assert shell("demo").out.splitlines()[-1].strip() == "phalanx compare train.py --workers 2"
    assert shell("demo", "--json").out == "", "stdout ends with the JSON object of the study"


def outcome(strategy: str, seconds: float, workers: int, code: int = 0) -> RunOutcome:
    summary = Summary(run="r", status="done", strategy=strategy, workers=workers)
    summary.phases.train = seconds
    return RunOutcome(summary, None, code)


def test_what_the_workers_do_not_explain_runs_again_in_reverse() -> None:
    single, two = outcome("single", 9.0, 1), outcome("allreduce", 1.0, 2)
    slower = outcome("async", 3.0, 2)
    assert in_question([single, slower, two]) == [2, 0]
    assert in_question([outcome("single", 2.0, 1), two]) == [], "twice as fast is what two can be"
    assert in_question([outcome("single", 0.9, 1), outcome("allreduce", 0.1, 2)]) == [], "too short"
    assert in_question([outcome("single", 900.0, 1), two]) == [], "too long to repeat unasked"
    assert in_question([single, outcome("allreduce", 1.0, 2, code=1)]) == []
    assert in_question([slower, two]) == []
