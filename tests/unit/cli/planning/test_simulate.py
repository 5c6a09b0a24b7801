"""``phalanx simulate``: what it is told, what it refuses, and time alone."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cli_support import TRAINING

from phalanx.cli.main import invoke
from phalanx.cli.planning.time_only import run_timed
from phalanx.core.settings import VirtualCluster, VirtualWorker
from phalanx.core.spec import parse_spec

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
        (("--step-seconds", "9ms~-1"), "what varies must be a share from 0 to 10"),
        (("--step-seconds", "9ms~much"), "what varies must be a share from 0 to 10"),
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
