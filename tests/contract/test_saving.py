"""Every strategy saves its whole state and goes on from it, exactly."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import as_ranks
from strategy_cases import EVERY, LOCKSTEP, quick
from torch import Tensor, nn
from training import Training, adam, assert_identical, momentum

import phalanx
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.core.spec import parse_spec
from phalanx.observe.events.event_types import Joined, Switched, read_events
from phalanx.train.checkpoint import checkpoint_index as shelf
from phalanx.train.checkpoint.resuming import Resumed
from phalanx.train.control.directives import Directive, Kind
from phalanx.train.engine.best_model import BestSoFar

SAVE = Directive(Kind.SAVE)
OPTIMIZERS = {"momentum": momentum, "adam": adam}


def _resumed(before: Training, folder: Path, **changes: Any) -> Training:
    path, _ = before.checkpoint()
    kept = {
        name: getattr(before, name)
        for name in ("spec", "workers", "model", "optimizer", "samples", "epochs", "accumulate")
    }
    return Training(folder, settings={"resume": str(path)}, **{**kept, **changes})


@pytest.mark.parametrize("optimizer", [pytest.param("momentum", marks=pytest.mark.slow), "adam"])
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


@pytest.mark.parametrize("at", [12, *(pytest.param(at, marks=pytest.mark.slow) for at in (5, 20))])
@pytest.mark.parametrize(
    ("coded", "between"),
    [
        ("allreduce+int8", "bsp"),
        ("allreduce+topk:ratio=0.1", "localsgd:every=2"),
        ("localsgd:every=2+topk:ratio=0.1", "allreduce"),
        ("diloco:every=2+powersgd:rank=1", "bsp"),
        ("bsp+int4", "allreduce"),
    ],
)
def test_a_coded_phase_that_training_comes_back_to_begins_alike_in_a_resumed_run(
    tmp_path: Path, coded: str, between: str, at: int
) -> None:
    spec = f"{coded}@0.3/{between}@0.6/{coded}"
    size: dict[str, Any] = {"epochs": 3, "samples": 96, "batch": 12}
    unbroken = Training(tmp_path / "unbroken", spec, 2, **size).run()
    saved = Training(tmp_path / "saved", spec, 2, commands={at: SAVE}, **size).run()
    resumed = _resumed(saved, tmp_path / "resumed").run()
    assert_identical(saved.state(), unbroken.state())
    assert_identical(resumed.state(), unbroken.state())


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
@pytest.mark.parametrize("spec", ["single", *quick(LOCKSTEP)])
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


@pytest.mark.parametrize("spec", ["single", *quick(EVERY)])
@pytest.mark.parametrize(("gap", "expected"), [(3600.0, [0, 2]), (1e-9, [0, 1, 2])])
def test_checkpoints_keep_apart_but_for_the_last(
    tmp_path: Path, spec: str, gap: float, expected: list[int]
) -> None:
    """The first worker's clock decides for all."""
    chosen = {"checkpoint_epochs": 1, "checkpoint_gap": gap, "keep": 9}
    workers = 1 if spec == "single" else 2
    saved = Training(tmp_path, spec, workers, settings=chosen, epochs=3).run()
    assert saved.counts() == saved.once()
    home = RunPaths(tmp_path).checkpoints
    found = [shelf.check(home / f"{number:06d}").epoch for number in shelf.numbers(home)]
    assert found == expected


@pytest.mark.parametrize("spec", quick(EVERY))
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


@pytest.mark.parametrize("spec", quick(EVERY))
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


LEAVE, RETURN = Directive(Kind.LEAVE), Directive(Kind.RETURN)
WATCHED = [0.5, 0.9, 0.6, 0.7, 0.65, 0.66, 0.6, 0.6]


def test_a_run_resumed_on_its_detour_for_a_straggler_comes_back(tmp_path: Path) -> None:
    commands = {3: LEAVE, 5: SAVE, 8: RETURN}
    saved = Training(
        tmp_path / "saved", "switch:on=straggler", 2, samples=400, commands=commands
    ).run()
    _, manifest, _ = shelf.newest_valid(RunPaths(saved.folder).checkpoints)
    assert manifest.phase == 1
    ended: list[str] = []
    resumed = _resumed(saved, tmp_path / "resumed", epochs=4)
    resumed.at_end = lambda run: ended.append(run.engine.phase)
    resumed.run()
    assert ended == ["allreduce", "allreduce"]


def test_a_later_phase_of_another_spec_is_no_detour(tmp_path: Path) -> None:
    saved = Training(tmp_path / "saved", "bsp@0.1/allreduce", 2, commands={5: SAVE}).run()
    resumed = _resumed(saved, tmp_path / "resumed", spec="switch:on=straggler").run()
    events = list(read_events(RunPaths(resumed.folder).events_of(0)))
    assert [event.phase for event in events if isinstance(event, Joined)] == ["allreduce"]
    assert not [event for event in events if isinstance(event, Switched)]


def _watched(folder: Path, stop: int | None = None, **chosen: Any) -> list[Any]:
    """Epochs that were trained, and the history."""

    def work(rank: int) -> Any:
        model, done = nn.Linear(4, 1), []
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.01))
        run.save_best("test_accuracy", patience=2)
        for epoch in run.epochs(8):
            for (x,) in run.batches((torch.ones(16, 4),), batch=8):
                run.backward(model(x).mean())
                run.step()
            run.log(test_accuracy=WATCHED[epoch])
            done.append(epoch)
            if epoch == stop:
                break
        return done, run.history

    return as_ranks(2, folder, work, RunSettings(checkpoint_epochs=1, **chosen))


@pytest.mark.parametrize("first_only", [False, True])
def test_a_training_that_is_stopped_ends_with_a_checkpoint(
    tmp_path: Path, first_only: bool
) -> None:
    """Also where only the first worker watches for the best: its word counts."""

    def work(rank: int) -> None:
        model = nn.Linear(4, 1)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.01))
        if first_only and run.is_first:
            run.save_best("test_loss")
        for epoch in run.epochs(8):
            for (x,) in run.batches((torch.ones(16, 4),), batch=8):
                run.backward(model(x).mean())
                run.step()
            if epoch == 4:
                run.stop()

    settings = RunSettings(checkpoint_epochs=1, checkpoint_gap=3600.0, keep=9)
    as_ranks(2, tmp_path, work, settings)
    home = RunPaths(tmp_path).checkpoints
    found = [shelf.check(home / f"{number:06d}").epoch for number in shelf.numbers(home)]
    assert found == ([0, 1, 2, 3, 4] if first_only else [0, 4])


def test_what_may_be_the_best_is_saved_at_once(tmp_path: Path) -> None:
    _watched(tmp_path, checkpoint_gap=3600.0, keep=9)
    assert shelf.numbers(RunPaths(tmp_path).checkpoints) == [1, 2, 3, 4]


def test_a_resumed_run_knows_its_history_and_the_best_so_far(tmp_path: Path) -> None:
    whole = _watched(tmp_path / "whole")
    assert whole[0][0] == [0, 1, 2, 3]
    _watched(tmp_path / "stopped", stop=2)
    before = RunPaths(tmp_path / "stopped")
    path, _, _ = shelf.newest_valid(before.checkpoints)
    resumed = _watched(tmp_path / "resumed", resume=str(path))
    for (trained, history), (_, wanted) in zip(resumed, whole, strict=True):
        assert trained == [2, 3], "the patience of before the stop counts"
        assert history == wanted
    assert RunPaths(tmp_path / "resumed").best.read_bytes() == before.best.read_bytes()


def test_weights_that_were_the_best_only_after_the_checkpoint_are_left_behind(
    tmp_path: Path,
) -> None:
    _watched(tmp_path / "whole", keep=99)
    paths = RunPaths(tmp_path / "whole")
    second = paths.checkpoints / "000002"
    resumed = Resumed(second, 0, 2, "allreduce")
    assert resumed.best == BestSoFar("test_accuracy", WATCHED[0], 0)
    for later, found in ((10.0, None), (-10.0, paths.best)):
        os.utime(paths.best, (0.0, resumed.manifest.wall + later))
        assert resumed.best_weights == found
