"""Every strategy saves its whole state and goes on from it, exactly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from strategy_cases import EVERY, LOCKSTEP
from torch import Tensor
from training import Training, adam, assert_identical, momentum

from phalanx.core.spec import parse_spec
from phalanx.train.board import Command, Kind

SAVE = Command(Kind.SAVE)
OPTIMIZERS = {"momentum": momentum, "adam": adam}


def _resumed(before: Training, folder: Path, **changes: Any) -> Training:
    path, _ = before.checkpoint()
    kept = {
        name: getattr(before, name)
        for name in ("spec", "workers", "model", "optimizer", "samples", "epochs", "accumulate")
    }
    return Training(folder, settings={"resume": str(path)}, **{**kept, **changes})


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("spec", LOCKSTEP)
def test_a_lockstep_run_stopped_in_mid_epoch_ends_where_an_unbroken_one_ends(
    tmp_path: Path, spec: str, optimizer: str
) -> None:
    kind = OPTIMIZERS[optimizer]
    unbroken = Training(tmp_path / "unbroken", spec, 3, optimizer=kind).run()
    saved = Training(tmp_path / "saved", spec, 3, optimizer=kind, commands={3: SAVE}).run()
    resumed = _resumed(saved, tmp_path / "resumed").run()
    if not _trains_apart_for_long(spec):
        assert 0 < sum(saved.before_save) < saved.samples  # it was in mid-epoch
    assert resumed.counts() + saved.counts(until_save=True) == saved.once()
    for rank in range(3):
        assert_identical(saved.state(rank), unbroken.state(rank))
        assert_identical(resumed.state(rank), unbroken.state(rank))


def _trains_apart_for_long(spec: str) -> bool:
    """Local strategies save where a round ends: without ``every`` that is the end of the epoch."""
    phase = parse_spec(spec).phases[0]
    return phase.traits.local and "every" not in phase.options


@pytest.mark.parametrize("accumulate", [2, 3])
@pytest.mark.parametrize("at", [1, 3, 4])
@pytest.mark.parametrize("spec", ["single", "allreduce", "localsgd:every=2"])
def test_gradients_that_accumulate_are_not_lost_when_stopped(
    tmp_path: Path, spec: str, at: int, accumulate: int
) -> None:
    workers = 1 if spec == "single" else 3
    unbroken = Training(tmp_path / "unbroken", spec, workers, accumulate=accumulate).run()
    saved = Training(
        tmp_path / "saved", spec, workers, accumulate=accumulate, commands={at: SAVE}
    ).run()
    resumed = _resumed(saved, tmp_path / "resumed").run()
    assert_identical(saved.state(), unbroken.state())
    assert_identical(resumed.state(), unbroken.state())


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("spec", ["single", *LOCKSTEP])
def test_a_checkpoint_after_an_epoch_is_of_the_whole_epoch(
    tmp_path: Path, spec: str, accumulate: int
) -> None:
    workers, each = 1 if spec == "single" else 2, {"checkpoint_epochs": 2}
    options: dict[str, Any] = {"accumulate": accumulate, "epochs": 3}
    unbroken = Training(tmp_path / "unbroken", spec, workers, **options).run()
    saved = Training(tmp_path / "saved", spec, workers, settings=each, **options).run()
    resumed = _resumed(saved, tmp_path / "resumed").run()
    assert {epoch for epoch, _ in resumed.counts()} == {2}
    assert_identical(resumed.state(), unbroken.state())


@pytest.mark.parametrize("spec", EVERY)
def test_what_is_restored_is_what_was_saved_and_no_sample_is_lost(
    tmp_path: Path, spec: str
) -> None:
    saved = Training(tmp_path / "saved", spec, 3, optimizer=adam, commands={2: SAVE}).run()
    assert sum(saved.before_save)
    resumed = _resumed(saved, tmp_path / "resumed", look=True, seed=5).run()
    _, state = saved.checkpoint()
    _assert_restored(resumed.captured[0].shared, state)
    assert resumed.counts() + saved.counts(until_save=True) == saved.once()
    assert all(bool(value.isfinite().all()) for value in resumed.state().values())


def _assert_restored(found: dict[str, Tensor], saved: dict[str, Tensor]) -> None:
    for name, value in found.items():
        assert torch.equal(value, saved[name]), name
    assert any(name.startswith("o0.exp_avg") and bool(v.any()) for name, v in found.items())


@pytest.mark.parametrize("spec", EVERY)
def test_another_number_of_workers_and_another_strategy_begin_with_the_same_parameters(
    tmp_path: Path, spec: str
) -> None:
    workers = (1, 2, 4)[EVERY.index(spec) % 3]
    saved = Training(tmp_path / "saved", spec, 3, optimizer=adam, commands={2: SAVE}).run()
    following = EVERY[(EVERY.index(spec) + 5) % len(EVERY)] if workers > 1 else "single"
    resumed = _resumed(
        saved, tmp_path / "resumed", look=True, workers=workers, spec=following
    ).run()
    _, state = saved.checkpoint()
    common = {k: v for k, v in resumed.captured[0].shared.items() if k in state}
    _assert_restored(common, state)
    assert resumed.counts() + saved.counts(until_save=True) == saved.once()
