"""``phalanx plan``, and ``run --strategy auto``, with a profile that is made up."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from cli_support import Shell
from made_plans import FAST, MBIT, job, probe

from phalanx.cli.show.result_lines import beside_prediction
from phalanx.core.errors import InputError
from phalanx.launch.launcher import Job
from phalanx.observe.summary.summary_fields import Summary
from phalanx.pool.measured import write_probe

POOL = """
machines:
  m1: {host: 10.0.0.1, cores: 4, watts: 200, price_per_hour: 9}
  m2: {host: 10.0.0.2, cores: 4, watts: 10, price_per_hour: 1}
"""
SPEEDS = {"m1": 0.01, "m2": 0.02, "here": 0.001}


@pytest.fixture
def pool(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> str:
    _profile(monkeypatch)
    path = Path(shell.folder / "pool.yaml")
    path.write_text(POOL)
    write_probe(probe(["m1", "m2"], FAST), path)
    shell.script()
    return "pool.yaml"


def _profile(monkeypatch: pytest.MonkeyPatch, **other: Any) -> None:
    monkeypatch.setattr(
        "phalanx.launch.profile.profile_job.profile_job", lambda *_, **__: job(SPEEDS, **other)
    )


def test_the_choice_is_marked_in_a_table_of_80_columns(shell: Shell, pool: str) -> None:
    answer = shell("plan", "train.py", "--pool", pool)
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert max(len(line) for line in lines) <= 80
    (marked,) = [line for line in lines if line.startswith("►")]
    assert "m1, m2" in marked
    assert "allreduce" in marked
    assert any(line.startswith("- m1 and m2 with allreduce") for line in lines)


def test_it_says_not_to_distribute(shell: Shell, pool: str) -> None:
    write_probe(probe(["m1", "m2"], 1 * MBIT), shell.folder / pool)
    answer = shell("plan", "train.py", "--pool", pool)
    assert "do not distribute this" in answer.out
    assert answer.out.count("►") == 1


def test_what_is_faster_with_unknown_accuracy_is_listed_apart(
    shell: Shell, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _profile(monkeypatch, gradient_bytes=100_000_000)
    write_probe(probe(["m1", "m2"], 50 * MBIT), shell.folder / pool)
    answer = shell("plan", "train.py", "--pool", pool)
    assert "faster, accuracy unknown" in answer.out
    assert max(len(line) for line in answer.out.splitlines()) <= 80


def test_energy_has_a_column_and_says_what_time_it_costs(shell: Shell, pool: str) -> None:
    answer = shell("plan", "train.py", "--pool", pool, "--objective", "energy")
    assert "energy" in answer.out.splitlines()[0]
    assert "costs time" in answer.out
    assert max(len(line) for line in answer.out.splitlines()) <= 80


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("--deadline", "1s"), "no plan meets the deadline of 1.00 s"),
        (("--deadline", "5"), "a time needs its unit"),
        (("--deadline", "0s"), "from 1 ns to a year"),
        (("--deadline", "2days"), "unknown unit 'days'"),
        (("--budget", "0.0001"), "no plan stays within the budget"),
        (("--budget", "-1"), "--budget must be above 0"),
        (("--objective", "tmie"), "unknown objective 'tmie'"),
        (("--max-accuracy-loss", "-1"), "must be from 0 to 100"),
        (("--machines", "auto"), "--machines auto needs --strategy auto"),
        (("--machines", "gpus"), "matches no machine"),
    ],
)
def test_refusals_are_one_line(shell: Shell, pool: str, words: tuple[str, ...], cause: str) -> None:
    answer = shell("plan", "train.py", "--pool", pool, *words)
    assert answer.code == 2
    assert answer.errors[-2].startswith("error: ")
    assert cause in answer.errors[-2]
    assert answer.errors[-1].startswith("hint: ")


def test_an_empty_pool_and_a_script_without_steps(
    shell: Shell, pool: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shell.folder / "empty.yaml").write_text("machines: {}\n")
    assert shell("plan", "train.py", "--pool", "empty.yaml").code == 2

    def never_steps(*_: object, **__: object) -> None:
        raise InputError("the script ended without a step", "Give it other arguments.")

    monkeypatch.setattr("phalanx.launch.profile.profile_job.profile_job", never_steps)
    answer = shell("plan", "train.py", "--pool", pool)
    assert answer.errors[-2] == "error: the script ended without a step"


def test_run_follows_the_choice_and_keeps_the_prediction(shell: Shell, pool: str) -> None:
    answer = shell("run", "train.py", "--machines", "auto", "--strategy", "auto")
    assert answer.code == 0, answer.err
    assert "predicted " in answer.out
    assert "took " in answer.out
    (folder,) = shell.runs.iterdir()
    plan = json.loads((folder / "plan.json").read_text())
    assert plan["selection"] == "auto"
    assert plan["strategy"] == "single"
    predicted = json.loads((folder / "summary.json").read_text())["predicted"]
    assert predicted == plan["predicted"]
    assert predicted["seconds_low"] < predicted["seconds"] < predicted["seconds_high"]


@pytest.mark.parametrize(
    "goal",
    [(), ("--objective", "energy"), ("--deadline", "10h"), ("--quick",), ("--machines", "m2")],
)
def test_the_printed_command_does_what_was_planned(
    shell: Shell, pool: str, monkeypatch: pytest.MonkeyPatch, goal: tuple[str, ...]
) -> None:
    (shell.folder / "data set").mkdir()
    asked = ("--epochs", "7", "--batch", "32", "--data", "data set", "--seed", "3")
    asked += ("--checkpoint-every", "2")
    words = ("train.py", "--pool", pool, *asked, *goal, "--json", "--", "--rate", "0.1 0.2")
    planned = shell("plan", *words)
    assert planned.code == 0, planned.err
    (line,) = [line for line in planned.err.splitlines() if line.startswith("follow it: ")]
    jobs: list[Job] = []

    def execute(title: str, job: Job, out: object, **_: object) -> int:
        jobs.append(job)
        return 0

    monkeypatch.setattr("phalanx.cli.verbs.run.execute_and_tell", execute)
    followed = shell(*shlex.split(line.removeprefix("follow it: "))[1:])
    assert followed.code == 0, followed.err
    (job,) = jobs
    assert set(planned.json) == {"chosen", "ranked", "unknown", "reasons"}
    chosen = planned.json["chosen"]
    assert [machine.name for machine in job.plan.machines] == chosen["machines"]
    assert (job.plan.strategy, job.plan.workers) == (chosen["strategy"], chosen["workers"])
    settings = job.settings
    assert (settings.epochs, settings.batch, settings.seed) == (7, 32, 3)
    assert settings.checkpoint_epochs == 2 and str(settings.data).endswith("data set")
    assert job.arguments == ["--rate", "0.1 0.2"]
    assert (job.plan.predicted["seconds"] is not None) is (goal in ((), ("--machines", "m2")))


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("--machines", "auto"), "--machines auto needs --strategy auto"),
        (("--strategy", "auto", "--dry-run"), "cannot be used with --dry-run"),
        (("--strategy", "auto", "--slow", "1,0.5"), "cannot be used with --slow"),
        (("--strategy", "auto", "--explain"), "cannot be used with --explain"),
    ],
)
def test_what_auto_does_not_go_with(
    shell: Shell, pool: str, words: tuple[str, ...], cause: str
) -> None:
    answer = shell("run", "train.py", *words)
    assert answer.code == 2
    assert cause in answer.err


def _told(took: float, status: str = "done") -> list[str]:
    predicted = {"seconds": 41.0, "seconds_low": 36.0, "seconds_high": 47.0}
    return beside_prediction(Summary(run="r", status=status, seconds=took, predicted=predicted))


def test_the_prediction_is_shown_beside_the_outcome() -> None:
    assert _told(43.0) == ["predicted 41.0 s (36.0 s to 47.0 s), took 43.0 s"]
    assert "46 % longer than predicted: measure again" in _told(60.0)[1]
    assert "shorter" in _told(20.0)[1]
    assert _told(43.0, "stopped") == []
    assert beside_prediction(Summary(run="r", status="done", seconds=3.0)) == []
