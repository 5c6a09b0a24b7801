"""``phalanx simulate``, and ``plan`` of a TensorFlow script, with steps that are made up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cli_support import TRAINING, Shell

from phalanx.cli.main import invoke
from phalanx.cli.planning import measured_choice
from phalanx.cli.planning.measured_choice import MeasuredSteps
from phalanx.cli.planning.time_only import run_timed
from phalanx.core.settings import VirtualCluster, VirtualWorker
from phalanx.core.spec import parse_spec
from phalanx.launch.launcher import Job

ONE = ("--workers", "4", "--step-seconds", "10ms+1ms", "--time-only")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    Path("train.py").write_text(TRAINING)
    return "train.py"


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (("--fail", "7@3"), "there is no worker 7"),
        (("--fail", "1"), "--fail 1 is not RANK@STEP"),
        (("--fail", "1@0"), "--fail 1@0: steps are counted from 1"),
        (("--fail", "1@2.5"), "--fail 1@2.5 is not RANK@STEP"),
        (("--step-seconds", "0s"), "--step-seconds must be above 0"),
        (("--latency", "5"), "--latency 5: a time needs its unit"),
        (("--step-seconds", "9ms~-1"), "the variation must be a share from 0 to 10"),
        (("--step-seconds", "9ms~much"), "the variation must be a share from 0 to 10"),
        (("--speeds", "1,1,1,1,1"), "--speeds has 5 speeds for 4 workers"),
        (("--speeds", "fast"), "--speeds must be a list of speeds"),
        (("--strategy", "switch:at=0.5"), "--time-only cannot time 'switch:at=0.5'"),
        (("--batch", "3"), "a batch of 3 is too small for 4 workers"),
        (("--workers", "20000"), "--workers 20000 is too many"),
        (("--fail", "1@2"), "--fail cannot time 'allreduce'"),
        (("--fail", "1@2", "--strategy", "groups:size=2"), "--fail cannot time 'groups"),
        (("--step-seconds", "1e308h"), "from 1 ns to a year"),
        (("--rate", "1e300gbit"), "is above 1000000gbit"),
        (("--rate", "1gbit"), "the size of this script's gradient is unknown"),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_a_line(
    script: str, words: tuple[str, ...], cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["simulate", script, *ONE, *words]) == 2
    problem = capsys.readouterr().err
    assert cause in " ".join(problem.split())
    assert "hint:" in problem


def test_nothing_is_timed_that_nothing_is_known_of(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["simulate", script, "--workers", "4", "--time-only"]) == 2
    assert "is unknown" in capsys.readouterr().err


def test_a_codec_sends_less_in_less_time() -> None:
    worker = VirtualWorker(fixed=0.01, each=1e-3, update=0.0, evaluate=0.0, bandwidth=1.25e6)
    cluster = VirtualCluster(workers=[worker] * 4)
    seconds = {}
    for strategy in ("allreduce", "allreduce+int8", "async", "async+int8"):
        (phase,) = parse_spec(strategy).phases
        compute = np.full(4, 0.018)
        seconds[strategy] = run_timed(phase, cluster, compute, 4e6, 20, seed=0).seconds
    assert seconds["allreduce+int8"] < 0.8 * seconds["allreduce"]
    assert seconds["async+int8"] < 0.8 * seconds["async"]  # replies stay whole


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        (("--strategy", "allreduce"), 0.020),
        (("--strategy", "allreduce", "--speeds", "1,1,1,0.25"), 0.080),
        (("--strategy", "ssp", "--speeds", "0.5"), None),
        (("--strategy", "groups:size=2"), 0.020),
        (("--strategy", "localsgd:every=4"), 0.020),
    ],
)
def test_time_alone(
    script: str,
    words: tuple[str, ...],
    seconds: float | None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    more = ("--batch", "40", "--json")
    assert invoke(["simulate", script, *ONE, *words, *more]) == 0
    told = capsys.readouterr()
    found = json.loads(told.out.splitlines()[-1])
    assert found["simulated"]
    assert found["workers"] == 4
    assert "simulated, time only" in told.err
    if seconds is not None:
        assert found["seconds"] == pytest.approx(1000 * seconds, rel=0.01)
        assert found["samples_per_second"] == pytest.approx(4 * 10 / seconds, rel=0.01)


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

    def execute(title: str, job: Job, out: object, **_: object) -> int:
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
        (MIRRORED, ("--objective", "energy"), "only the time of another"),
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
