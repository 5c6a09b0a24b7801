"""``plan`` of a script of TensorFlow's own strategies, with steps that are made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_support import Shell

from phalanx.cli.planning import measured_choice
from phalanx.cli.planning.measured_choice import MeasuredSteps
from phalanx.launch.launcher import Job

MIRRORED = "import tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()\n"
POOL = "machines:\n" + "".join(f"  m{n}: {{host: 10.0.0.{n}, cores: 4}}\n" for n in (1, 2, 3))
WORDS = ("plan", "train.py", "--framework", "tensorflow", "--pool", "pool.yaml")


@pytest.fixture
def tried(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """What was measured; m2 is the fastest, and m3 makes every group slow."""
    (shell.folder / "pool.yaml").write_text(POOL)
    (shell.folder / "train.py").write_text(MIRRORED)
    tried: list[tuple[str, ...]] = []

    def measured(request: Any, *_: Any) -> MeasuredSteps:
        names = tuple(machine.name for machine in request.machines)
        tried.append(names)
        alone = {"m1": 0.02, "m2": 0.01, "m3": 0.05}
        step = max(alone[name] for name in names) * 1.1
        many = len(names)
        return MeasuredSteps(step, 0.0, 100, 64.0 * many, 1000 // many, 3, 5.0)

    monkeypatch.setattr(measured_choice, "_measured", measured)
    return tried


def test_it_adds_machines_until_one_more_is_no_faster(
    shell: Shell, tried: list[tuple[str, ...]]
) -> None:
    answer = shell(*WORDS, "--json")
    assert answer.code == 0, answer.err
    assert tried == [("m1",), ("m2",), ("m3",), ("m2", "m1")]
    chosen = answer.json["chosen"]
    assert (chosen["machines"], chosen["strategy"]) == (["m2"], "single")
    said = " ".join(answer.json["reasons"])
    assert "do not distribute this: m2 and m1 together need" in said
    assert "more than 2 machines were not tried" in said
    assert "global batch grows with the workers (64 to 128 samples a step)" in said


def test_the_printed_command_names_what_was_chosen(
    shell: Shell, tried: list[tuple[str, ...]]
) -> None:
    answer = shell(*WORDS, "--epochs", "4", "--", "--rate", "0.1")
    words = "--framework tensorflow --pool pool.yaml --epochs 4 --machines m2 -- --rate 0.1"
    (line,) = [line for line in answer.out.splitlines() if line.startswith("follow it: ")]
    followed = sorted(line.removeprefix("follow it: phalanx run train.py ").split(" --"))
    assert followed == sorted(words.split(" --"))
    assert len(tried) == 4


def test_run_follows_it(
    shell: Shell, tried: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[tuple[str, Job]] = []

    def execute(title: str, job: Job, out: object) -> int:
        jobs.append((title, job))
        return 0

    monkeypatch.setattr("phalanx.cli.verbs.run.execute_and_tell", execute)
    answer = shell("run", *WORDS[1:], "--machines", "auto", "--strategy", "auto")
    assert answer.code == 0, answer.err
    assert tried == [("m1",), ("m2",), ("m3",), ("m2", "m1")]
    ((title, job),) = jobs
    assert title == "train-single"
    assert [machine.name for machine in job.plan.machines] == ["m2"]
    assert [machine.name for machine in job.fleet.machines] == ["m2"]
    assert job.framework is not None and job.framework.system == "tf-mwms"
    assert job.plan.selection == "auto" and job.plan.predicted["seconds"] > 5.0
    assert any("do not distribute this" in reason for reason in job.plan.reasons)


@pytest.mark.parametrize(
    ("script", "words", "said"),
    [
        ("tf.distribute.experimental.ParameterServerStrategy(None)", (), "a script of tf-ps"),
        (MIRRORED, ("--objective", "energy"), "only the time is measured"),
    ],
)
def test_what_cannot_be_planned_is_refused(
    shell: Shell, tried: list[tuple[str, ...]], script: str, words: tuple[str, ...], said: str
) -> None:
    Path(shell.folder / "train.py").write_text(script)
    answer = shell(*WORDS, *words)
    assert answer.code == 2
    assert said in answer.err
    assert not tried
