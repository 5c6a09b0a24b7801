"""Validation, best model, patience, logging, accumulation: the same in every strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from devices import on_device
from ranks import as_ranks
from safetensors.torch import load_file
from torch import Tensor, nn
from training import train_epoch

import phalanx
from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.data.reader import order
from phalanx.observe.events.event_types import EpochDone, Joined, Logged, PhaseDone, read_events
from phalanx.train.engine.best_model import Best
from phalanx.train.engine.engine import Engine

STRATEGIES = ["single", "allreduce", "async", "switch:at=0.5", "async@0.5/allreduce"]
torch.manual_seed(2)
X = torch.randn(240, 6)
Y = (X[:, 0] + X[:, 1] > 0).long()


def _workers(strategy: str) -> int:
    return 1 if strategy == "single" else 3


def _fit(folder: Path, strategy: str, **options: Any) -> list[nn.Module]:
    def work(rank: int) -> nn.Module:
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
        scheduler = options.get("scheduler")
        phalanx.fit(
            model, optimizer=optimizer, loss=nn.functional.cross_entropy,
            **{"train": (X[:180], Y[:180]), "test": (X[180:], Y[180:]), "epochs": 6, "batch": 18,
               **options, "scheduler": scheduler and scheduler(optimizer)},
        )  # fmt: skip
        return model

    return as_ranks(_workers(strategy), folder, work, RunSettings(strategy=strategy))


def _logged(folder: Path, workers: int) -> dict[int, dict[str, float | None]]:
    found: dict[int, dict[str, float | None]] = {}
    for rank in range(workers):
        for event in read_events(RunPaths(folder).events_of(rank)):
            if isinstance(event, Logged):
                assert event.epoch not in found, "two workers report on one epoch"
                found[event.epoch] = event.values
    return found


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_epoch_is_reported_once_and_the_best_is_kept(tmp_path: Path, strategy: str) -> None:
    half = {"hits": lambda outputs, y: (outputs.argmax(1) == y).float().mean()}
    _fit(tmp_path, strategy, validation=0.2, best="validation_accuracy", metrics=half)
    logged = _logged(tmp_path, _workers(strategy))
    assert sorted(logged) == list(range(6))
    for values in logged.values():
        assert {"validation_loss", "validation_accuracy", "test_loss", "test_hits"} <= set(values)
        assert values["test_hits"] == pytest.approx(values["test_accuracy"])
    assert max(v["test_accuracy"] or 0 for v in logged.values()) > 0.8
    _assert_best_is_what_was_judged(tmp_path, logged)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_first_worker_calls_back_with_every_epoch(tmp_path: Path, strategy: str) -> None:
    rows: list[dict[str, Any]] = []
    _fit(tmp_path, strategy, clip=0.5, callbacks=[rows.append])
    assert [row["epoch"] for row in rows] == list(range(6))
    assert all(row["train_loss"] > 0 and row["rate"] == 0.02 for row in rows)
    assert all(row["gradient_norm"] > 0 for row in rows)
    if strategy in ("single", "allreduce"):
        assert all(row["test_accuracy"] > 0 for row in rows)


@pytest.mark.parametrize("strategy", ["single", "allreduce"])
def test_the_norm_is_that_of_the_gradient_before_clipping(tmp_path: Path, strategy: str) -> None:
    rows: list[dict[str, Any]] = []

    def work(rank: int) -> None:
        model = nn.Linear(6, 2)
        nn.init.zeros_(model.weight), nn.init.zeros_(model.bias)
        phalanx.fit(
            model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1), train=(X, Y), epochs=1,
            loss=nn.functional.cross_entropy, batch=240, clip=0.01, callbacks=[rows.append],
        )  # fmt: skip

    as_ranks(_workers(strategy), tmp_path, work, RunSettings(strategy=strategy))
    x = torch.cat([X, torch.ones(240, 1)], 1)
    wrong = torch.full((240, 2), 0.5) - nn.functional.one_hot(Y, 2)
    expected = float((wrong.T @ x / 240).norm())
    assert rows[0]["gradient_norm"] == pytest.approx(expected, rel=1e-5)


def _assert_best_is_what_was_judged(folder: Path, logged: dict[int, dict[str, Any]]) -> None:
    best = max(logged.values(), key=lambda values: values["validation_accuracy"])
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 2))
    model.load_state_dict(load_file(RunPaths(folder).best))
    model.eval()
    found = float(phalanx.accuracy(model(X[180:]), Y[180:]))
    tied = [v for v in logged.values() if v["validation_accuracy"] == best["validation_accuracy"]]
    assert any(found == pytest.approx(v["test_accuracy"], abs=1e-6) for v in tied)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_patience_ends_training_for_all(tmp_path: Path, strategy: str) -> None:
    def worse(outputs: Tensor, targets: Tensor) -> float:
        worse.value += 1.0  # type: ignore[attr-defined]
        return worse.value  # type: ignore[attr-defined,no-any-return]

    worse.value = 0.0  # type: ignore[attr-defined]
    _fit(tmp_path, strategy, epochs=40, metrics={"error": worse}, best="test_error", patience=2)
    workers = _workers(strategy)
    told = [
        [e.epoch for e in read_events(RunPaths(tmp_path).events_of(r)) if isinstance(e, EpochDone)]
        for r in range(workers)
    ]
    assert all(epochs == told[0] for epochs in told)
    assert 3 <= len(told[0]) < 20


@pytest.mark.parametrize("strategy", ["allreduce@0.4/async", "async@0.4/allreduce"])
def test_a_switch_while_gradients_accumulate(tmp_path: Path, strategy: str) -> None:
    models = _fit(tmp_path, strategy, accumulate=3, epochs=3)
    first = models[0].state_dict()
    assert all(torch.equal(m.state_dict()[k], first[k]) for m in models for k in first)


def test_fit_takes_the_mean_over_the_samples_that_it_accumulates(tmp_path: Path) -> None:
    """Also over those of a shorter last batch, and without a worker that has none of it."""
    values = torch.arange(1.0, 11.0).unsqueeze(1)

    def work(rank: int) -> Tensor:
        model = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(model.weight)
        phalanx.fit(
            model,
            optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
            loss=lambda outputs, _: outputs.mean(),
            train=(values, values),
            batch=9,
            epochs=1,
            accumulate=2,
        )
        return model.weight.detach()

    for workers in (1, 2):
        for found in as_ranks(workers, tmp_path / str(workers), work, RunSettings()):
            assert float(found) == pytest.approx(-5.5)


@pytest.mark.parametrize("strategy", ["allreduce", "bsp"])
def test_both_optimizers_get_what_a_worker_accumulated_that_has_none_of_the_last_batch(
    tmp_path: Path, strategy: str
) -> None:
    def work(rank: int) -> list[Tensor]:
        one, two = nn.Linear(6, 1, bias=False), nn.Linear(6, 1, bias=False)
        nn.init.zeros_(one.weight)
        nn.init.zeros_(two.weight)
        a = torch.optim.SGD(one.parameters(), lr=1.0)
        b = torch.optim.SGD(two.parameters(), lr=1.0)
        run = phalanx.join([one, two], [a, b])
        for x, _ in run.batches((X[:9], Y[:9]), batch=8):  # eight, and one
            run.backward((one(x) + two(x)).mean())
            if run.pending == 2:
                run.step(a)
                run.step(b)
        run.finish()
        return [one.weight.detach(), two.weight.detach()]

    sequence = order(9, RunSettings().seed, 0)
    expected = -(X[sequence[:8]].mean(0) + X[sequence[8]])  # they add up, as in torch
    for weights in as_ranks(2, tmp_path, work, RunSettings(strategy=strategy)):
        assert all(torch.allclose(w, expected, atol=1e-6) for w in weights)


def test_logging_and_evaluating_after_the_loop(tmp_path: Path) -> None:
    def work(rank: int) -> float:
        model = nn.Linear(6, 2)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for _ in run.epochs(2):
            train_epoch(run, model, (X, Y), 24)
        score = run.evaluate(phalanx.accuracy, (X, Y))
        run.log(final_accuracy=score)
        run._parts.stopwatch.writer.flush()
        return score

    for strategy in ("allreduce", "async"):
        folder = tmp_path / strategy
        one, two = as_ranks(2, folder, work, RunSettings(strategy=strategy))
        assert one == two
        assert _logged(folder, 2) == {1: {"final_accuracy": pytest.approx(one)}}


def test_two_trainings_in_one_script_are_told_one_after_the_other(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        for _ in range(2):
            model = nn.Linear(6, 2)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            phalanx.fit(
                model, optimizer=optimizer, loss=nn.functional.cross_entropy, train=(X, Y),
                epochs=3, batch=24,
            )  # fmt: skip

    as_ranks(2, tmp_path, work, RunSettings())
    events = list(read_events(RunPaths(tmp_path).events_of(1)))
    assert [e.epoch for e in events if isinstance(e, EpochDone)] == list(range(6))
    assert len([e for e in events if isinstance(e, Joined)]) == 2
    assert len([e for e in events if isinstance(e, PhaseDone) and e.phase == "start"]) == 1


def test_nan_is_never_the_best() -> None:
    best = Best(Engine((), (), None))  # type: ignore[arg-type]
    best.name = "test_accuracy"
    assert not best.improves(float("nan"), 0)
    assert best.improves(0.1, 1)
    assert not best.improves(float("nan"), 2)


def test_training_data_are_augmented_and_evaluation_data_are_not(tmp_path: Path) -> None:
    seen: list[Tensor] = []

    def augment(x: Tensor, draws: Any) -> Tensor:
        return x + 100

    def work(rank: int) -> None:
        model = nn.Linear(6, 2)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.0))
        data = (X, Y)

        def metric(outputs: Tensor, y: Tensor) -> float:
            seen.append(outputs.abs().max())
            return 0.0

        for _ in run.epochs(1):
            run.evaluate(metric, data)
            for x, y in run.batches(data, batch=24, augment=augment):
                assert float(x.min()) > 50
                run.backward(nn.functional.cross_entropy(model(x), y))
                run.step()
            run.evaluate(metric, data)

    as_ranks(1, tmp_path, work, RunSettings(strategy="single"))
    assert max(float(value) for value in seen) < 50


@pytest.mark.parametrize("workers", [1, 2])
def test_half_converted_loops_are_told_so(tmp_path: Path, workers: int) -> None:
    def own_batches(rank: int) -> None:
        model = nn.Linear(6, 2)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        run.backward(nn.functional.cross_entropy(model(on_device(X)), on_device(Y)))

    def own_step(rank: int) -> None:
        model = nn.Linear(6, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = phalanx.join(model, optimizer)
        for x, y in run.batches((X, Y), batch=24):
            run.backward(nn.functional.cross_entropy(model(x), y))
            optimizer.step()

    with pytest.raises(InputError, match=r"without a batch from run\.batches"):
        as_ranks(workers, tmp_path / "batches", own_batches, RunSettings())
    with pytest.raises(InputError, match=r"called optimizer\.step\(\) itself"):
        as_ranks(workers, tmp_path / "step", own_step, RunSettings())


def test_epochs_on_the_command_line_need_a_loop_that_asks(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        model = nn.Linear(6, 2)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        next(iter(run.batches((X, Y), batch=24)))

    with pytest.raises(InputError, match="--epochs was given"):
        as_ranks(1, tmp_path, work, RunSettings(strategy="single", epochs=3))


def test_batches_of_the_scripts_own_weigh_what_it_says(tmp_path: Path) -> None:
    x = torch.randn(12, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def work(rank: int) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Linear(4, 1, dtype=torch.float64)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        own = x if run.workers == 1 else (x[:9], x[9:])[rank]
        model(own).square().mean().backward()
        run.step(weight=len(own) / 12)
        run.finish()
        return model.weight.detach()

    alone = as_ranks(1, tmp_path / "alone", work, RunSettings(strategy="single"))[0]
    for weight in as_ranks(2, tmp_path / "two", work, RunSettings()):
        assert (weight - alone).abs().max() <= 1e-10


@pytest.mark.parametrize("workers", [1, 2])
def test_epochs_are_numbered_as_by_range(tmp_path: Path, workers: int) -> None:
    def work(rank: int) -> list[int]:
        model = nn.Linear(6, 2)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        seen = []
        for epoch in run.epochs(1, 6):
            seen.append(epoch)
            train_epoch(run, model, (X, Y), 120)
        return seen

    for chosen, wanted in ((None, [1, 2, 3, 4, 5]), (2, [1, 2])):
        settings = RunSettings(strategy="allreduce", epochs=chosen)
        assert as_ranks(workers, tmp_path / str(chosen), work, settings) == [wanted] * workers
