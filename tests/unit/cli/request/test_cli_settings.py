"""What ``run`` and ``compare`` put into a run's settings, and ``--strategy help``."""

from __future__ import annotations

from typing import Any

import pytest
from cli_support import Shell
from hypothesis import given
from hypothesis import strategies as st

from phalanx.cli.request.options import STRATEGY_NAMES
from phalanx.cli.request.strategy_help import SWITCHES
from phalanx.cli.request.values import (
    CheckpointTimes,
    read_checkpoints,
    read_launcher,
    read_rate,
    read_slow,
)
from phalanx.core.spec import known_strategies, parse_spec
from phalanx.core.spec.codecs import known_codecs


def settings_of(shell: Shell, *words: str) -> list[dict[str, Any]]:
    answer = shell(*words, "--dry-run", "--json")
    assert answer.code == 0, answer.err
    return [launch["settings"] for launch in answer.json["launches"]]


def test_run_writes_checkpoints_some_seconds_apart_and_compare_none(shell: Shell) -> None:
    (run,) = settings_of(shell, "run", shell.script())
    assert (run["checkpoint_epochs"], run["checkpoint_minutes"], run["keep"]) == (1, None, 3)
    assert run["checkpoint_gap"] == 20.0
    (each,) = settings_of(shell, "run", "train.py", "--checkpoint-every", "1")
    assert (each["checkpoint_epochs"], each["checkpoint_gap"]) == (1, 0.0)
    assert (run["balance"], run["slow"], run["rate"]) == ("auto", None, None)
    for row in settings_of(shell, "compare", "train.py", "--workers", "2"):
        assert row["checkpoint_epochs"] == 0
        assert row["balance"] == "auto"


def test_what_is_asked_for_reaches_the_workers(shell: Shell) -> None:
    words = ["--workers", "4", "--slow", "1,0.25", "--rate", "100mbit", "--check", "5,finite"]
    more = ["--checkpoint-every", "2,10min,keep=5", "--strategy", "allreduce:shares=equal"]
    (run,) = settings_of(shell, "run", shell.script(), *words, *more)
    assert run["slow"] == [1.0, 0.25, 1.0, 1.0], "those that are not named keep their speed"
    assert (run["rate"], run["balance"], run["on_nonfinite"]) == (1e8, "off", "stop")
    assert run["check"] == 5
    assert (run["checkpoint_epochs"], run["checkpoint_minutes"], run["keep"]) == (2, 10.0, 5)

    single, other = settings_of(shell, "compare", "train.py", "--strategies", "bsp", *words)
    assert single["slow"] == [1.0], "one worker has one speed"
    assert other["slow"] == [1.0, 0.25, 1.0, 1.0]


def test_an_automatic_switch_is_where_past_runs_recommend_it(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("run", shell.script(), "--workers", "2", "--strategy", "switch:at=auto")
    (before,) = settings_of(shell, *words)
    known = {("switch:at=0.4", 2): {1: 0.0, 2: 0.0, 3: 0.0}}
    monkeypatch.setattr("phalanx.observe.summary.past_runs.losses_of", lambda *_: known)
    (after,) = settings_of(shell, *words)
    assert (before["strategy"], after["strategy"]) == ("switch:at=0.5", "switch:at=0.4")
    (equal,) = settings_of(shell, *words[:-1], "switch:at=auto:shares=equal")
    assert (equal["strategy"], equal["balance"]) == ("switch:at=0.4:shares=equal", "off")


@pytest.mark.parametrize(
    ("text", "rate"),
    [("100mbit", 1e8), ("1.5Gbit", 1.5e9), ("56kbit", 56e3), ("9600", 9600.0), ("1e6 bit", 1e6)],
)
def test_rates(text: str, rate: float) -> None:
    assert read_rate(text) == rate


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("1", CheckpointTimes(1)),
        ("0", CheckpointTimes(0)),
        ("10min", CheckpointTimes(0, 10.0)),
        ("0.5min,3", CheckpointTimes(3, 0.5)),
        ("keep=7", CheckpointTimes(1, keep=7, gap=20.0)),
        ("2h", CheckpointTimes(0, 120.0)),
    ],
)
def test_checkpoint_times(text: str, found: CheckpointTimes) -> None:
    assert read_checkpoints(text, 3) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("slurm:partition=gpu,time=1:00:00", ("slurm", "partition=gpu,time=1:00:00")),
        ("ray:10.0.0.1:6379", ("ray", "10.0.0.1:6379")),
        ("spark:local[2]", ("spark", "local[2]")),
        ("spark://h:7077", ("spark", "spark://h:7077")),
        ("slurm", ("slurm", "")),
    ],
)
def test_launchers(text: str, found: tuple[str, str]) -> None:
    assert read_launcher(text) == found


@given(st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=8))
def test_speeds_are_read_as_they_are_written(speeds: list[float]) -> None:
    assert read_slow(",".join(map(str, speeds))) == tuple(speeds)


@pytest.mark.parametrize(
    "words",
    [["run"], ["run", "train.py"], ["compare"], ["resume"]],
    ids=" ".join,
)
def test_strategy_help_needs_nothing_else_and_names_everything(
    shell: Shell, words: list[str]
) -> None:
    answer = shell(*words, "--strategy", "help")

    assert answer.code == 0
    assert answer.err == ""
    for name in (*known_strategies(), *known_codecs(), *(example for example, _ in SWITCHES)):
        assert f"\n{name} " in answer.out
    assert "bound=3: steps ahead of the slowest; 0 or more" in " ".join(answer.out.split())
    assert max(map(len, answer.out.splitlines())) <= 80


def test_every_example_of_the_help_is_a_spec(shell: Shell) -> None:
    answer = shell("run", "--strategy", "help", "--json").json
    examples = [
        entry["example"] for part in ("strategies", "codecs", "switches") for entry in answer[part]
    ]
    assert len(examples) > 15
    for example in examples:
        assert parse_spec(example).text == example


def test_the_option_s_help_names_the_strategies() -> None:
    assert STRATEGY_NAMES.split(", ") == list(known_strategies())


def test_epochs_of_a_script_that_decides_them_itself_are_refused(shell: Shell) -> None:
    """Those of Keras' ``fit`` are not: Phalanx passes them on."""
    torch = shell.script("import torch\nfor epoch in range(3): pass\n", "plain.py")
    for verb in ("run", "compare"):
        answer = shell(verb, torch, "--workers", "2", "--epochs", "5", "--dry-run")
        assert answer.code == 2
        assert "--epochs does not apply: the script does not call Phalanx" in answer.err
    keras = shell.script("import keras\nkeras.Sequential().fit([0])\n", "with_keras.py")
    (run,) = settings_of(shell, "run", keras, "--epochs", "5")
    assert run["epochs"] == 5
