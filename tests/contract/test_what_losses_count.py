"""Losses whose parts do not count for their samples: padded tokens, selections, changing terms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from devices import AWAY
from plain_compare import assert_near
from plain_scripts import CLASSES, SEED, Script, data_of, linear
from plain_worlds import as_workers, first_pass
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

import phalanx
from phalanx.core.errors import InputError
from phalanx.data.reader import order
from phalanx.train.api.run import Run

pytestmark = pytest.mark.skipif(AWAY, reason="held against torch on this processor, digit by digit")
WORKERS = pytest.mark.parametrize("workers", [2, 3])
WORDS, TEXTS, BATCH = 7, 44, 10
Loop = Callable[[nn.Module, torch.optim.Optimizer, Run, Any], None]


def _trained(loop: Loop, **declared: Any) -> Callable[[int], Tensor]:
    def work(rank: int) -> Tensor:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        run = phalanx.join(model, optimizer, **declared)
        loop(model, optimizer, run, run.batches(data_of(Script()), batch=Script().batch))
        run.finish()
        return model.weight.detach()

    return work


def _refused(loop: Loop, folder: Path, words: str, **declared: Any) -> None:
    with pytest.raises(InputError) as caught:
        as_workers(2, folder, _trained(loop, **declared))
    assert words in caught.value.cause
    assert caught.value.remedy


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

    def steps(model: nn.Module, batches: Iterator[Tensor], step: Callable[[], None]) -> Tensor:
        for texts in batches:
            _next_word(model, texts, reduction).backward()
            step()
        return model.state_dict()["1.weight"].clone()

    def work(rank: int) -> Tensor:
        model = _speaker()
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.3))
        loader = DataLoader(_texts(), BATCH, shuffle=True, collate_fn=_padded)  # type: ignore[arg-type]
        weight = steps(model, run.batches(loader), run.step)
        run.finish()
        return weight

    model, texts = _speaker(), _texts()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    parts = (_padded([texts[i] for i in part]) for part in order(TEXTS, SEED, 0).split(BATCH))

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad()

    wanted = steps(model, parts, step)
    for found in as_workers(workers, tmp_path, work):
        assert_near(found, wanted, "weights")


@pytest.mark.parametrize("kind", ["cross entropy", "squares"])
def test_a_mean_over_a_selection_is_refused_unless_it_is_weighed(tmp_path: Path, kind: str) -> None:
    def error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        kept = y != 0
        if kind == "cross entropy":
            return F.cross_entropy(model(x)[kept], y[kept])
        return F.mse_loss(model(x)[kept], F.one_hot(y, CLASSES).double()[kept])

    def blindly(model: nn.Module, _: Any, run: Run, batches: Any) -> None:
        for x, y in batches:
            run.backward(error(model, x, y))
            run.step()

    def weighed(model: nn.Module, _: Any, run: Run, batches: Any) -> None:
        for x, y in batches:
            run.backward(error(model, x, y))
            run.step(weight=int((y != 0).sum()) if run.samples else 0)

    _refused(blindly, tmp_path / "blindly", "selection")
    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in first_pass(Script()):
        optimizer.zero_grad()
        error(model, x, y).backward()
        optimizer.step()
    for found in as_workers(2, tmp_path / "weighed", _trained(weighed)):
        assert_near(found, model.weight.detach(), "weights")


def test_a_term_that_comes_later_is_looked_at(tmp_path: Path) -> None:
    def loop(model: nn.Module, _: Any, run: Run, batches: Any) -> None:
        for number, (x, y) in enumerate(batches):
            error = F.cross_entropy(model(x), y)
            run.backward(error + 0.1 * model(x).pow(2).sum() if number > 3 else error)
            run.step()

    _refused(loop, tmp_path, "sum")


@pytest.mark.parametrize("by", ["torch.autograd", "a vector"])
def test_a_sum_is_noticed_however_it_goes_backwards(tmp_path: Path, by: str) -> None:
    def loop(model: nn.Module, _: Any, run: Run, batches: Any) -> None:
        for x, y in batches:
            errors = F.cross_entropy(model(x), y, reduction="none")
            if by == "torch.autograd":
                torch.autograd.backward(errors.sum())
            else:
                errors.backward(torch.ones_like(errors))
            run.step()

    _refused(loop, tmp_path, "sum")


@pytest.mark.parametrize("first", ["weighted", "plain"])
def test_a_weighted_mean_and_another_of_two_passes_are_refused(tmp_path: Path, first: str) -> None:
    weights = torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64)

    def loop(model: nn.Module, _: Any, run: Run, batches: Any) -> None:
        for x, y in batches:
            for turn in range(2):
                plain = (first == "plain") == (turn == 0)
                run.backward(F.cross_entropy(model(x), y, None if plain else weights))
            run.step()

    _refused(loop, tmp_path, "weighted mean")


@pytest.mark.parametrize("kind", ["weighted", "sum"])
def test_a_batch_may_be_given_up_after_a_look(tmp_path: Path, kind: str) -> None:
    """As when its gradient is too large: the next one is not added to it."""
    weights = torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64)
    declared = {"loss": "sum"} if kind == "sum" else {}

    def error(out: Tensor, y: Tensor) -> Tensor:
        if kind == "sum":
            return F.cross_entropy(out, y, reduction="sum") / 8
        return F.cross_entropy(out, y, weights)

    def steps(model: nn.Module, optimizer: Any, batches: Any, step: Callable[[], None]) -> None:
        for number, (x, y) in enumerate(batches):
            error(model(x), y).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            if number % 2:
                optimizer.zero_grad()
                continue
            step()
            optimizer.zero_grad()

    def loop(model: nn.Module, optimizer: Any, run: Run, batches: Any) -> None:
        steps(model, optimizer, batches, run.step)

    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    steps(model, optimizer, first_pass(Script()), optimizer.step)
    for found in as_workers(2, tmp_path, _trained(loop, **declared)):
        assert_near(found, model.weight.detach(), "weights")


def test_each_of_two_losses_of_a_batch_counts_by_itself(tmp_path: Path) -> None:
    """A weighted one for one optimizer, then a plain one for another."""
    weights = torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64)

    def steps(
        models: list[Any], batches: Any, step: Callable[[int], None]
    ) -> tuple[Tensor, Tensor]:
        for x, y in batches:
            F.cross_entropy(models[0](x), y, weights).backward()
            step(0)
            models[1](x).pow(2).mean().backward()
            step(1)
        return models[0].weight.detach().clone(), models[1].weight.detach().clone()

    def made() -> tuple[list[Any], list[torch.optim.Optimizer]]:
        models = [linear(), linear()]
        return models, [torch.optim.SGD(m.parameters(), lr=0.05) for m in models]

    def work(rank: int) -> tuple[Tensor, Tensor]:
        models, optimizers = made()
        run = phalanx.join(models, optimizers)
        batches = run.batches(data_of(Script()), batch=Script().batch)
        ended = steps(models, batches, lambda i: run.step(optimizers[i]))
        run.finish()
        return ended

    models, optimizers = made()

    def step(index: int) -> None:
        optimizers[index].step()
        optimizers[index].zero_grad()

    wanted = steps(models, first_pass(Script()), step)
    for found in as_workers(2, tmp_path, work):
        for mine, plain in zip(found, wanted, strict=True):
            assert_near(mine, plain, "weights")


BENT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a root": lambda out, y: F.mse_loss(out, F.one_hot(y, CLASSES).double()).sqrt(),
    "a logarithm": lambda out, y: out.exp().mean().log(),
    "a quotient": lambda out, y: 1 - (out * F.one_hot(y, CLASSES)).sum() / out.exp().sum(),
}


@pytest.mark.parametrize("name", BENT)
def test_a_function_of_a_mean_is_refused(tmp_path: Path, name: str) -> None:
    """Parts of a batch do not add up to it."""

    def loop(model: nn.Module, _: Any, run: Run, batches: Any) -> None:
        for x, y in batches:
            run.backward(BENT[name](model(x), y))
            run.step()

    _refused(loop, tmp_path, "function of the whole batch")


@WORKERS
def test_norms_and_factors_of_parameters_are_no_such_function(tmp_path: Path, workers: int) -> None:
    def error(model: Any, x: Tensor, y: Tensor) -> Tensor:
        norms = torch.stack([p.norm() for p in model.parameters()])
        root = sum(p.pow(2).sum() for p in model.parameters()).sqrt()  # type: ignore[union-attr]
        factor = torch.exp(-model.weight[0, 0])
        return 1 - factor * F.cross_entropy(model(x), y) + 0.1 * norms.sum() + 0.1 * root

    def loop(model: nn.Module, _: Any, run: Run, batches: Any) -> None:
        for x, y in batches:
            run.backward(error(model, x, y))
            run.step()

    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for x, y in first_pass(Script()):
        optimizer.zero_grad()
        error(model, x, y).backward()
        optimizer.step()
    for found in as_workers(workers, tmp_path, _trained(loop)):
        assert_near(found, model.weight.detach(), "weights")


def test_a_parameter_of_two_optimizers_is_refused(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        model = linear()
        optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for _ in range(2)]
        phalanx.join(model, optimizers)

    with pytest.raises(InputError, match="optimizer 1 and in optimizer 2"):
        as_workers(2, tmp_path, work)
