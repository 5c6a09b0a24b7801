"""What a loss counts for its samples: sums, means, selections, and what parts do not add up to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from devices import AWAY
from plain_compare import assert_near
from plain_worlds import (
    BATCH,
    CLASSES,
    SEED,
    as_workers,
    data_of,
    first_pass,
    in_both_worlds,
    linear,
)
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import phalanx
from phalanx.core.errors import InputError
from phalanx.data.reader import order
from phalanx.train.api.run import Run

pytestmark = pytest.mark.skipif(AWAY, reason="held against torch on this processor, digit by digit")
WORKERS = pytest.mark.parametrize("workers", [2, 3])
BY = pytest.mark.parametrize("by", ["run.backward", "backward"])
WORDS, TEXTS, RATE = 7, 44, 0.01
WEIGHTS = torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64)
Measure = Callable[[Tensor, Tensor], Tensor]
Loop = Callable[[Any, Run, Iterator[Any]], None]
SUMS: dict[str, Measure] = {
    "of torch": lambda out, y: F.cross_entropy(out, y, reduction="sum"),
    "by hand": lambda out, y: F.cross_entropy(out, y, reduction="none").sum(),
    "of squares": lambda out, y: (out - F.one_hot(y, CLASSES)).pow(2).sum(),
    "divided by one": lambda out, y: F.cross_entropy(out, y, reduction="sum") / 1,
    "divided by a worker's part": lambda out, y: F.cross_entropy(out, y, reduction="sum") / 4,
    "divided by a constant": lambda out, y: F.cross_entropy(out, y, reduction="sum") / 8,
    "and a mean": lambda out, y: F.cross_entropy(out, y) + 0.1 * out.pow(2).sum(),
}
WEIGHTED: dict[str, Measure] = {
    "weights of classes": lambda out, y: F.cross_entropy(out, y, weight=WEIGHTS),
    "a class that is ignored": lambda out, y: F.cross_entropy(out, y, ignore_index=1),
}
"""Torch divides by the weights it has seen, which differ between workers."""
MEANS: dict[str, Measure] = {
    "of torch": F.cross_entropy,
    "divided by hand": lambda out, y: F.cross_entropy(out, y, reduction="sum") / len(y),
    "divided by the shape": lambda out, y: (out - 1).pow(2).sum() / out.shape[0],
    "multiplied by hand": lambda out, y: (out - 1).pow(2).sum() * (1 / len(y)),
    "of sums of a sample": lambda out, y: (out - 1).pow(2).sum(dim=1).mean(),
    "of sums by einsum": lambda out, y: torch.einsum("nc,nc->n", out, out).mean(),
    "of columns, added up": lambda out, y: out.pow(2).mean(dim=0).sum(),
    "of two parts": lambda out, y: F.cross_entropy(out, y) + 0.1 * out.pow(2).sum(1).mean(),
    "of all": lambda out, y: F.mse_loss(out, F.one_hot(y, CLASSES).double()),
    "of log-sums": lambda out, y: torch.logsumexp(out, dim=1).mean(),
}
"""There are sums in them, of a sample or of parameters."""
BENT: dict[str, Measure] = {
    "a root": lambda out, y: F.mse_loss(out, F.one_hot(y, CLASSES).double()).sqrt(),
    "a logarithm": lambda out, y: out.exp().mean().log(),
    "a quotient": lambda out, y: 1 - (out * F.one_hot(y, CLASSES)).sum() / out.exp().sum(),
}
SELECTED: dict[str, Measure] = {
    "cross entropy": lambda out, y: F.cross_entropy(out[y != 0], y[y != 0]),
    "squares": lambda out, y: F.mse_loss(out[y != 0], F.one_hot(y, CLASSES).double()[y != 0]),
}


def _sgd(model: nn.Module, rate: float = RATE) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=rate)


def _each(measure: Measure, by: str = "run.backward") -> Loop:
    """The shortest loop."""

    def loop(model: Any, run: Run, batches: Iterator[Any]) -> None:
        for x, y in batches:
            error = measure(model(x), y)
            run.backward(error) if by == "run.backward" else error.backward()
            run.step()

    return loop


def _trained(loop: Loop, **declared: Any) -> Callable[[int], Tensor]:
    def work(rank: int) -> Tensor:
        model = linear()
        run = phalanx.join(model, _sgd(model), **declared)
        loop(model, run, iter(run.batches(data_of(), batch=BATCH)))
        run.finish()
        return model.weight.detach()

    return work


def _plainly(error: Callable[[Any, Tensor, Tensor], Tensor]) -> Tensor:
    model = linear()
    optimizer = _sgd(model)
    for x, y in first_pass():
        optimizer.zero_grad()
        error(model, x, y).backward()
        optimizer.step()
    return model.weight.detach()


def _alone(measure: Measure) -> Tensor:
    return _plainly(lambda model, x, y: measure(model(x), y))


def _all_near(found: list[Tensor], wanted: Tensor) -> None:
    for weights in found:
        assert_near(weights, wanted, "weights")


@pytest.mark.parametrize("name", [*SUMS, *WEIGHTED])
@BY
def test_a_sum_that_is_not_declared_is_refused_or_right(tmp_path: Path, name: str, by: str) -> None:
    measure = {**SUMS, **WEIGHTED}[name]
    work, wanted = _trained(_each(measure, by)), _alone(measure)
    _all_near(as_workers(1, tmp_path / "one", work), wanted)
    try:
        _all_near(as_workers(2, tmp_path / "two", work), wanted)
    except InputError as error:
        assert name in WEIGHTED or "sum" in error.cause
        assert name in WEIGHTED or 'loss="sum"' in error.remedy
        assert error.remedy


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_is_not_taken_for_a_sum(tmp_path: Path, name: str) -> None:
    _all_near(as_workers(2, tmp_path, _trained(_each(MEANS[name]))), _alone(MEANS[name]))


def test_fit_refuses_a_sum_or_trains_with_it_as_one_process(tmp_path: Path) -> None:
    loss = nn.CrossEntropyLoss(reduction="sum")

    def work(rank: int) -> Tensor:
        model = linear()
        data = data_of()
        phalanx.fit(model, optimizer=_sgd(model), loss=loss, train=data, epochs=1, batch=8)
        return model.weight.detach()

    try:
        _all_near(as_workers(2, tmp_path, work), _alone(loss))
    except InputError as error:
        assert "sum" in error.cause and error.remedy


# -- what is refused -------------------------------------------------------------------------


def _term_that_comes_later(model: Any, run: Run, batches: Iterator[Any]) -> None:
    for number, (x, y) in enumerate(batches):
        error = F.cross_entropy(model(x), y)
        run.backward(error + 0.1 * model(x).pow(2).sum() if number > 3 else error)
        run.step()


def _sum_by_autograd(model: Any, run: Run, batches: Iterator[Any]) -> None:
    for x, y in batches:
        torch.autograd.backward(F.cross_entropy(model(x), y, reduction="sum"))
        run.step()


def _sum_by_a_vector(model: Any, run: Run, batches: Iterator[Any]) -> None:
    for x, y in batches:
        errors = F.cross_entropy(model(x), y, reduction="none")
        errors.backward(torch.ones_like(errors))
        run.step()


def _two_passes(*weights: Tensor | None) -> Loop:
    def loop(model: Any, run: Run, batches: Iterator[Any]) -> None:
        for x, y in batches:
            for weight in weights:
                run.backward(F.cross_entropy(model(x), y, weight))
            run.step()

    return loop


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        (_term_that_comes_later, "sum"),
        (_sum_by_autograd, "sum"),
        (_sum_by_a_vector, "sum"),
        (_two_passes(WEIGHTS, None), "weighted mean"),
        (_two_passes(None, WEIGHTS), "weighted mean"),
        *((_each(measure), "function of the whole batch") for measure in BENT.values()),
        *((_each(measure), "selection") for measure in SELECTED.values()),
    ],
)
def test_what_parts_of_a_batch_do_not_add_up_to_is_refused(
    tmp_path: Path, loop: Loop, words: str
) -> None:
    with pytest.raises(InputError) as caught:
        as_workers(2, tmp_path, _trained(loop))
    assert words in caught.value.cause
    assert caught.value.remedy


def test_a_parameter_of_two_optimizers_is_refused(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        model = linear()
        phalanx.join(model, [_sgd(model), _sgd(model)])

    with pytest.raises(InputError, match="optimizer 1 and in optimizer 2"):
        as_workers(2, tmp_path, work)


# -- what is weighed -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", SELECTED)
def test_a_mean_over_a_selection_may_be_weighed(tmp_path: Path, kind: str) -> None:
    def weighed(model: Any, run: Run, batches: Iterator[Any]) -> None:
        for x, y in batches:
            run.backward(SELECTED[kind](model(x), y))
            run.step(weight=int((y != 0).sum()) if run.samples else 0)

    _all_near(as_workers(2, tmp_path, _trained(weighed)), _alone(SELECTED[kind]))


def _texts() -> list[Tensor]:
    drawn = torch.Generator().manual_seed(5)
    lengths = torch.randint(2, 9, (TEXTS,), generator=drawn).tolist()
    return [torch.randint(1, WORDS, (length,), generator=drawn) for length in lengths]


def _padded(texts: list[Tensor]) -> Tensor:
    return nn.utils.rnn.pad_sequence(texts, batch_first=True, padding_value=0)


def _speaker() -> nn.Module:
    model = nn.Sequential(nn.Embedding(WORDS, 4), nn.Linear(4, WORDS)).double()
    drawn = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=drawn, dtype=torch.float64))
    return model


def _next_word(model: nn.Module, texts: Tensor, reduction: str) -> Tensor:
    guesses, words = model(texts[:, :-1]).reshape(-1, WORDS), texts[:, 1:].reshape(-1)
    loss = F.cross_entropy(guesses, words, ignore_index=0, reduction=reduction)
    return loss / (words != 0).sum() if reduction == "sum" else loss


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@WORKERS
def test_texts_that_are_padded_to_the_longest_of_their_batch(
    tmp_path: Path, workers: int, reduction: str
) -> None:
    """Which is another one on each worker."""

    def work(rank: int) -> Tensor:
        model = _speaker()
        run = phalanx.join(model, _sgd(model, 0.3))
        loader = DataLoader(_texts(), 10, shuffle=True, collate_fn=_padded)  # type: ignore[arg-type]
        for texts in run.batches(loader):
            _next_word(model, texts, reduction).backward()
            run.step()
        run.finish()
        return model.state_dict()["1.weight"].clone()

    model, texts = _speaker(), _texts()
    optimizer = _sgd(model, 0.3)
    for part in order(TEXTS, SEED, 0).split(10):
        optimizer.zero_grad()
        _next_word(model, _padded([texts[i] for i in part]), reduction).backward()
        optimizer.step()
    _all_near(as_workers(workers, tmp_path, work), model.state_dict()["1.weight"])


@pytest.mark.parametrize("kind", ["weighted", "sum"])
def test_a_batch_may_be_given_up_after_a_look(tmp_path: Path, kind: str) -> None:
    """As when its gradient is too large: the next one is not added to it."""
    declared = {"loss": "sum"} if kind == "sum" else {}
    measure = (SUMS["divided by a constant"], WEIGHTED["weights of classes"])[kind == "weighted"]

    def steps(model: Any, batches: Any, step: Callable[[], Any]) -> None:
        for number, (x, y) in enumerate(batches):
            measure(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            if number % 2 == 0:
                step()
            model.zero_grad()

    model = linear()
    steps(model, first_pass(), _sgd(model).step)
    work = _trained(lambda model, run, batches: steps(model, batches, run.step), **declared)
    _all_near(as_workers(2, tmp_path, work), model.weight.detach())


def test_each_of_two_losses_of_a_batch_counts_by_itself(tmp_path: Path) -> None:
    """A weighted one for one optimizer, then a plain one for another."""

    def loop(models: Any, batches: Any, backward: Any, step: Any, first: bool) -> list[Tensor]:
        for x, y in batches:
            F.cross_entropy(models[0](x), y, WEIGHTS).backward()
            step(0)
            models[1](x).pow(2).mean().backward()
            step(1)
        return [model.weight.detach().clone() for model in models]

    models = lambda: [linear(), linear()]  # noqa: E731
    ended, wanted = in_both_worlds(tmp_path, 2, models, loop, lr=RATE)
    for found in ended:
        for mine, plain in zip(found, wanted, strict=True):
            assert_near(mine, plain, "weights")


@WORKERS
def test_norms_and_factors_of_parameters_are_no_function_of_the_batch(
    tmp_path: Path, workers: int
) -> None:
    def error(model: Any, x: Tensor, y: Tensor) -> Tensor:
        norms = torch.stack([p.norm() for p in model.parameters()])
        root = sum(p.pow(2).sum() for p in model.parameters()).sqrt()  # type: ignore[union-attr]
        factor = torch.exp(-model.weight[0, 0])
        return 1 - factor * F.cross_entropy(model(x), y) + 0.1 * norms.sum() + 0.1 * root

    def loop(model: Any, run: Run, batches: Iterator[Any]) -> None:
        for x, y in batches:
            run.backward(error(model, x, y))
            run.step()

    _all_near(as_workers(workers, tmp_path, _trained(loop)), _plainly(error))
