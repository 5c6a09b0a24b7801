"""What a script may do with its gradients, one thing at a time, as it is in plain torch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from devices import AWAY
from plain_compare import assert_near, hold
from plain_scripts import CLASSES, MOMENTUM, Script, data_of, linear
from plain_worlds import as_workers, first_pass
from torch import Tensor, nn
from torch.nn import functional as F

import phalanx
from phalanx.core.errors import PhalanxError

pytestmark = pytest.mark.skipif(AWAY, reason="held against torch on this processor, digit by digit")
WORKERS = pytest.mark.parametrize("workers", [1, 2, 3])
SEVERAL = pytest.mark.parametrize("workers", [2, 3])


# -- reading gradients ----------------------------------------------------------------------


@WORKERS
@pytest.mark.parametrize("by", ["run.backward", "backward"])
def test_a_gradient_reads_as_that_of_one_process(tmp_path: Path, workers: int, by: str) -> None:
    """In every batch, also in the last one, which is uneven."""
    script = Script()

    def work(rank: int) -> list[Tensor]:
        model, seen = linear(), []
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.0))
        for x, y in run.batches(data_of(script), batch=script.batch):
            loss = F.cross_entropy(model(x), y)
            run.backward(loss) if by == "run.backward" else loss.backward()
            assert model.weight.grad is not None
            seen.append(model.weight.grad.clone())
            run.step()
        run.finish()
        return seen

    wanted = []
    for x, y in first_pass(script):
        model = linear()
        F.cross_entropy(model(x), y).backward()
        wanted.append(model.weight.grad)
    for seen in as_workers(workers, tmp_path, work):
        for found, gradient in zip(seen, wanted, strict=True):
            assert gradient is not None
            assert_near(found, gradient, "gradient")


@WORKERS
@pytest.mark.parametrize(
    ("clip", "backward"),
    [(c, "run") for c in ("norm", "value", "own", "assigned", "look", "step")]
    + [("norm", "plain")],
)
def test_clipping_between_backward_and_step(
    tmp_path: Path, workers: int, clip: Any, backward: Any
) -> None:
    """Norms are compared, too, where the script sees them."""
    hold(replace(MOMENTUM, clip=clip, backward=backward), workers, tmp_path)


@WORKERS
@pytest.mark.parametrize("backward", ["run", "plain"])
def test_a_backward_pass_after_a_look_adds_to_what_was_seen(
    tmp_path: Path, workers: int, backward: Any
) -> None:
    script = replace(MOMENTUM, clip="norm", clip_each=True, accumulate=2, backward=backward)
    hold(script, workers, tmp_path / "clipped")
    hold(replace(script, clip="look"), workers, tmp_path / "seen")


@SEVERAL
@pytest.mark.parametrize("clip", ["norm", "look", "own"])
def test_gradients_are_read_while_a_worker_has_no_samples(
    tmp_path: Path, workers: int, clip: Any
) -> None:
    script = replace(MOMENTUM, samples=33, clip=clip)
    assert script.leaves_idle(workers)
    hold(script, workers, tmp_path)


@SEVERAL
def test_a_gradient_that_one_worker_alone_reads_is_right_or_refused(
    tmp_path: Path, workers: int
) -> None:
    script = Script()

    def work(rank: int) -> tuple[Tensor, list[float]]:
        model, seen = linear(), []
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for x, y in run.batches(data_of(script), batch=script.batch):
            run.backward(F.cross_entropy(model(x), y))
            if run.is_first:  # as for a figure in a log
                assert model.weight.grad is not None
                seen.append(float(model.weight.grad.norm()))
            run.step()
        run.finish()
        return model.weight.detach().clone(), seen

    model, norms = linear(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in first_pass(script):
        F.cross_entropy(model(x), y).backward()
        assert model.weight.grad is not None
        norms.append(float(model.weight.grad.norm()))
        optimizer.step()
        optimizer.zero_grad()
    try:
        ended = as_workers(workers, tmp_path, work)
    except PhalanxError as error:
        assert error.remedy
        return
    assert ended[0][1] == pytest.approx(norms, rel=1e-10)
    for weights, _ in ended:
        assert_near(weights, model.weight.detach(), "weights")


def _two_models() -> tuple[nn.Linear, nn.Linear]:
    one, two = linear(), nn.Linear(CLASSES, CLASSES).double()
    nn.init.eye_(two.weight)
    nn.init.zeros_(two.bias)
    return one, two


@WORKERS
def test_each_of_two_optimizers_has_gradients_of_its_own(tmp_path: Path, workers: int) -> None:
    """One is clipped and stepped; the other is stepped later, on two batches' gradients."""
    script = Script()

    def trained(
        one: nn.Linear, two: nn.Linear, batches: Any, backward: Any, step: Any
    ) -> list[Tensor]:
        for number, (x, y) in enumerate(batches):
            backward(F.cross_entropy(two(one(x)), y))
            nn.utils.clip_grad_norm_(one.parameters(), 0.1)
            step(0)
            if number % 2:
                step(1)
        return [p.detach() for p in (*one.parameters(), *two.parameters())]

    def optimizers(*models: nn.Module) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.5) for m in models]

    def work(rank: int) -> list[Tensor]:
        models = _two_models()
        made = optimizers(*models)
        run = phalanx.join(models, made)
        batches = run.batches(data_of(script), batch=script.batch)
        ended = trained(*models, batches, run.backward, lambda i: run.step(made[i]))
        run.finish()
        return ended

    def plain_step(optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()
        optimizer.zero_grad()

    models = _two_models()
    made = optimizers(*models)
    wanted = trained(
        *models, first_pass(script), lambda loss: loss.backward(), lambda i: plain_step(made[i])
    )
    for ended in as_workers(workers, tmp_path, work):
        for found, value in zip(ended, wanted, strict=True):
            assert_near(found, value, "weights")


# -- accumulation ---------------------------------------------------------------------------


@WORKERS
@pytest.mark.parametrize("backward", ["run", "plain"])
@pytest.mark.parametrize(
    ("divided", "last"), [(True, "step"), (False, "leave")], ids=["divided", "added up"]
)
def test_gradients_accumulate_as_everyone_writes_it(
    tmp_path: Path, workers: int, backward: Any, divided: bool, last: Any
) -> None:
    """With a last batch that is smaller than the others, and a last window that is."""
    script = replace(MOMENTUM, accumulate=4, backward=backward, divided=divided, last=last)
    assert script.length % script.accumulate
    hold(script, workers, tmp_path)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("zero", ["top", "bottom", "model"])
@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_are_zeroed_where_the_script_does_it(
    tmp_path: Path, workers: int, zero: Any, to_none: bool
) -> None:
    """What a last window left is dropped at the top of the next one, or adds to it."""
    script = replace(MOMENTUM, accumulate=4, last="leave", zero=zero, to_none=to_none)
    hold(script, workers, tmp_path)


@SEVERAL
def test_accumulated_batches_of_a_worker_without_samples_count(
    tmp_path: Path, workers: int
) -> None:
    hold(replace(MOMENTUM, samples=33, accumulate=3), workers, tmp_path)


@WORKERS
def test_fit_takes_the_mean_of_accumulated_batches(tmp_path: Path, workers: int) -> None:
    script, model = Script(samples=48), linear()

    def work(rank: int) -> Tensor:
        model = linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        phalanx.fit(
            model, optimizer=optimizer, loss=F.cross_entropy, train=data_of(script),
            epochs=1, batch=script.batch, accumulate=3,
        )  # fmt: skip
        return model.weight.detach()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, (x, y) in enumerate(first_pass(script), 1):
        (F.cross_entropy(model(x), y) / 3).backward()
        if number % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
    for found in as_workers(workers, tmp_path, work):
        assert_near(found, model.weight.detach(), "weights")


# -- a worker without samples ---------------------------------------------------------------


@WORKERS
@pytest.mark.parametrize("scaled", ["run", "plain"])
@pytest.mark.parametrize("clip", ["none", "norm"])
def test_losses_that_a_scaler_multiplies(
    tmp_path: Path, workers: int, scaled: Any, clip: Any
) -> None:
    script = replace(MOMENTUM, scaled=scaled, clip=clip, accumulate=2)
    hold(script, workers, tmp_path)


ALL_BATCHES = {
    "average": replace(MOMENTUM, samples=33, average="lerp"),
    "scaler": replace(MOMENTUM, samples=33, scaled="run", epochs=3),
    "moment": replace(MOMENTUM, samples=33, branch="unfrozen", late=(0, 4)),
}


@pytest.mark.parametrize("what", ALL_BATCHES)
def test_a_worker_without_samples_of_a_last_batch_misses_nothing(tmp_path: Path, what: str) -> None:
    """It goes through the loop like the others: scripts do more there than a step."""
    hold(ALL_BATCHES[what], 3, tmp_path)
