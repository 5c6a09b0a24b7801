"""What past runs say to who plans the next one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from made_runs import write_run

from phalanx.observe.summary.past_runs import losses_of, outcomes_of, past_runs
from phalanx.observe.summary.summary import summarise

SCRIPT = "print('training')\n"


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return path


def _past(home: Path, name: str, source: str = SCRIPT, **changes: Any) -> None:
    predicted, simulated = changes.pop("predicted", None), changes.pop("simulated", False)
    paths = write_run(home, name, **changes)
    paths.source.mkdir()
    (paths.source / "train.py").write_text(source)
    summary = summarise(paths, status="done")
    summary.simulated = simulated
    if predicted:
        summary.predicted = predicted
    paths.summary.write_bytes(msgspec.json.encode(summary))


def test_runs_with_the_same_seed_are_pairs(tmp_path: Path, script: Path) -> None:
    home = tmp_path / "runs"
    for seed in (1, 2):
        _past(home, f"1-base-{seed}", strategy="allreduce", seed=seed, accuracy=0.97)
        _past(home, f"2-async-{seed}", strategy="async", seed=seed, accuracy=0.96)
    _past(home, "3-alone", strategy="async", seed=9)
    _past(home, "4-longer", strategy="async", seed=1, epochs=5, accuracy=0.5)
    _past(home, "5-other", source="print()\n", strategy="async", seed=1, accuracy=0.1)
    assert set(losses := losses_of(past_runs(home), script, [])) == {("async", 2)}
    assert losses["async", 2] == pytest.approx({1: 0.01, 2: 0.01}, abs=0.004)
    assert losses_of(past_runs(home), script, ["--depth", "3"]) == {}
    _past(home, "6-again", strategy="async", seed=2, accuracy=0.95)  # pairs of one seed are one
    assert losses_of(past_runs(home), script, [])["async", 2] == pytest.approx(
        {1: 0.01, 2: 0.02}, abs=0.004
    )


def test_real_and_simulated_runs_are_no_pairs(tmp_path: Path, script: Path) -> None:
    home = tmp_path / "runs"
    _past(home, "1-base", strategy="allreduce", seed=1, accuracy=0.97)
    _past(home, "2-async", strategy="async", seed=1, accuracy=0.90, simulated=True)
    assert losses_of(past_runs(home), script, []) == {}
    _past(home, "3-base", strategy="allreduce", seed=1, accuracy=0.95, simulated=True)
    assert set(losses_of(past_runs(home), script, [])) == {("async", 2)}


def test_other_words_for_a_strategy_are_the_same_evidence(tmp_path: Path, script: Path) -> None:
    home = tmp_path / "runs"
    _past(home, "1-base", strategy="allreduce", seed=1, accuracy=0.97)
    _past(home, "2-ps", strategy="ps", seed=1, accuracy=0.96)
    _past(home, "3-equal", strategy="switch:at=0.5:shares=equal", seed=1, accuracy=0.96)
    assert set(losses_of(past_runs(home), script, [])) == {("async", 2), ("switch:at=0.5", 2)}


def test_predicted_runs_are_outcomes(tmp_path: Path) -> None:
    home = tmp_path / "runs"
    _past(home, "1-plain")
    _past(home, "2-told", predicted={"samples_per_second": 2000.0, "factor": 1.1, "seconds": 1.0})
    ((machines, strategy, ratio),) = outcomes_of(past_runs(home))
    told = next(r.summary for r in past_runs(home) if r.summary.predicted["seconds"])
    assert (machines, strategy) == (["here"], "allreduce")
    assert ratio == pytest.approx(2200.0 / (told.samples_per_second or 0.0))
