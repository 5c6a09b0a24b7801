"""Values of all workers, metrics of a whole set, and evaluation wherever a script asks for it: the
same on every worker and strategy, and nobody waits for ever."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import as_ranks
from strategy_cases import LOCKSTEP, UNCODED, is_lockstep
from torch import Tensor, nn

import phalanx
from phalanx.core.errors import InputError, PeerLost
from phalanx.core.settings import RunSettings
from phalanx.sync.state import windows
from phalanx.train.api.run import Run

SAMPLES = 37


def _data(samples: int = SAMPLES) -> tuple[Tensor, Tensor]:
    x = torch.randn(samples, 4, generator=torch.Generator().manual_seed(3))
    return x, (x[:, 0] + 0.5 * x[:, 1] > 0).long()


def f1(outputs: Tensor, targets: Tensor) -> float:
    found = outputs.argmax(1)
    hits = ((found == 1) & (targets == 1)).sum()
    return float(2 * hits / ((found == 1).sum() + (targets == 1).sum()))


class F1:
    """As torchmetrics has it."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.seen: list[tuple[Tensor, Tensor]] = []

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.seen.append((outputs, targets))

    def compute(self) -> Tensor:
        outputs, targets = zip(*self.seen, strict=True)
        return torch.tensor(f1(torch.cat(outputs), torch.cat(targets)))


def _run(model: nn.Module) -> Run:
    return phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.3))


def _epoch(run: Run, model: nn.Module) -> None:
    for x, y in run.batches(_data(), batch=8):
        run.backward(nn.functional.cross_entropy(model(x), y))
        run.step()


@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("strategy", UNCODED)
def test_a_metric_of_the_whole_set(tmp_path: Path, strategy: str, workers: int) -> None:
    def work(rank: int) -> tuple[list[float], nn.Module]:
        torch.manual_seed(0)
        model, values = nn.Linear(4, 2), []
        run, metric = _run(model), F1()
        for _ in run.epochs(2):
            _epoch(run, model)
            values = [run.evaluate(m, _data(), whole=w) for m, w in ((f1, True), (metric, False))]
        return values, model

    chosen = RunSettings(strategy=strategy if workers > 1 else "single")
    found = as_ranks(workers, tmp_path, work, chosen)
    assert all(values == found[0][0] for values, _ in found)
    assert found[0][0][0] == pytest.approx(found[0][0][1])
    if workers == 1 or is_lockstep(strategy):  # else the snapshot may be of before the last update
        model = found[0][1]
        assert found[0][0][0] == pytest.approx(f1(model(_data()[0]), _data()[1]))


@pytest.mark.parametrize("strategy", ["allreduce", "async", "groups:size=2", "localsgd:every=3"])
def test_values_of_all_workers(
    tmp_path: Path, strategy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(windows, "GATHERED_BYTES", 64)  # so that even these travel in parts
    monkeypatch.setattr(windows, "BETWEEN_HOSTS", 64)

    def work(rank: int) -> list[Any]:
        torch.manual_seed(0)
        model, found = nn.Linear(4, 2), []
        run = _run(model)
        for _ in run.epochs(2):
            _epoch(run, model)
            found = [
                run.gather({"rank": rank, "text": "é" * rank, "nan": math.nan}),
                run.gather(torch.full((rank, 40), float(rank))),
                run.reduce(torch.tensor([rank, 2 * rank])),
                *(run.reduce(float(rank + 1), how) for how in ("mean", "sum", "min", "max")),
            ]
        return found

    for values, tensors, mean, *numbers in as_ranks(
        3, tmp_path, work, RunSettings(strategy=strategy)
    ):
        assert [value["text"] for value in values] == ["", "é", "éé"]
        assert all(math.isnan(value["nan"]) for value in values)
        assert [tuple(tensor.shape) for tensor in tensors] == [(0, 40), (1, 40), (2, 40)]
        assert float(tensors[2].sum()) == 160.0
        assert mean.tolist() == [1.0, 2.0]
        assert numbers == [2.0, 6.0, 1.0, 3.0]


@pytest.mark.parametrize("strategy", [s for s in LOCKSTEP if not s.startswith(("local", "diloco"))])
def test_between_batches_in_lockstep_also_without_samples(tmp_path: Path, strategy: str) -> None:
    """The last batch has one sample: two of three workers have none of their own."""

    def work(rank: int) -> list[float]:
        torch.manual_seed(0)
        model, sums = nn.Linear(4, 2), []
        run = _run(model)
        for x, y in run.batches(_data(), batch=9):
            run.backward(nn.functional.cross_entropy(model(x), y))
            sums.append(run.reduce(run.samples, "sum"))
            run.step()
        run.finish()
        return sums

    found = as_ranks(3, tmp_path, work, RunSettings(strategy=strategy))
    assert found == [[9, 9, 9, 9, 1]] * 3


def _say(tmp_path: Path, work: Any, strategy: str = "allreduce") -> str:
    with pytest.raises((InputError, PeerLost)) as caught:
        as_ranks(2, tmp_path, work, RunSettings(strategy=strategy))
    return str(caught.value)


def test_between_batches_of_free_workers_it_is_refused(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        model = nn.Linear(4, 2)
        run = _run(model)
        for _ in run.batches(_data(), batch=8):
            run.reduce(1.0)

    assert "between batches: under async" in _say(tmp_path, work, "async")


def test_workers_that_do_not_all_ask_are_told_so(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        model = nn.Linear(4, 2)
        run = _run(model)
        for _ in run.epochs(1):
            _epoch(run, model)
            if rank == 0:
                run.gather(1)

    assert "diverged" in _say(tmp_path, work)


def test_after_the_training_and_for_odd_values_it_is_refused(tmp_path: Path) -> None:
    def work(rank: int) -> list[str]:
        model, said = nn.Linear(4, 2), []
        run = _run(model)
        for _ in run.epochs(1):
            _epoch(run, model)
            for value, how in ((object(), "mean"), ("text", "mean"), (1.0, "median")):
                try:
                    run.reduce(value, how)
                except InputError as error:
                    said.append(str(error))
        with pytest.raises(InputError, match="after the training"):
            run.gather(1)
        return said

    odd, text, how = as_ranks(2, tmp_path, work, RunSettings())[0]
    assert "run.gather cannot send a object" in odd
    assert "not str" in text
    assert "unknown reduction 'median'" in how


# -- evaluation ------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [2, 3])
@pytest.mark.parametrize("samples", [36, 40, 44])
@pytest.mark.parametrize("strategy", ["async", "ssp:bound=3", "groups:size=1"])
def test_in_the_loop_of_workers_with_unequal_numbers_of_batches(
    tmp_path: Path, strategy: str, samples: int, every: int
) -> None:
    def work(rank: int) -> int:
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        evaluations = 0
        for _ in run.epochs(2):
            for i, (x, y) in enumerate(run.batches(_data(samples), batch=8)):
                if i % every == 0:
                    run.evaluate(phalanx.accuracy, _data(20))
                    evaluations += 1
                run.backward(nn.functional.cross_entropy(model(x), y))
                run.step()
            run.log(test_accuracy=run.evaluate(phalanx.accuracy, _data(20)))
        return evaluations

    chosen = RunSettings(strategy=strategy, slow=[1.0, 0.1])
    assert sum(as_ranks(2, tmp_path, work, chosen)) > 0


def test_workers_that_train_apart_are_evaluated_as_one(tmp_path: Path) -> None:
    """Also after a step that came behind the last round, as accumulation makes them."""

    def work(rank: int) -> Tensor:
        torch.manual_seed(0)
        model, weights = nn.Linear(4, 2), torch.empty(0)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.5))
        for _ in run.epochs(1):
            for x, y in run.batches(_data(40), batch=8):
                run.backward(nn.functional.cross_entropy(model(x), y))
                if run.pending == 2:
                    run.step()
            if run.pending:
                run.step()
            run.evaluate(phalanx.accuracy, _data(20))
            weights = model.weight.detach().clone()
        return weights

    first, second = as_ranks(2, tmp_path, work, RunSettings(strategy="localsgd:every=5"))
    assert torch.equal(first, second)
