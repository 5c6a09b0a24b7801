"""What a script may do in its loop, one thing at a time, as it is in plain torch."""

from __future__ import annotations

import io
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from devices import AWAY
from plain_scripts import (
    CLASSES,
    FEATURES,
    SEED,
    Script,
    assert_as_plain,
    assert_near,
    assert_same_optimizer,
    assert_small,
    data_of,
    train_plain,
    train_workers,
)
from ranks import as_ranks
from torch import Tensor, nn
from torch.nn import functional as F

import phalanx
from phalanx.core.errors import InputError, PhalanxError
from phalanx.core.settings import RunSettings
from phalanx.core.spec import known_strategies
from phalanx.data.ledger import order
from phalanx.sync import early_gradients
from phalanx.sync.collective import ahead

pytestmark = pytest.mark.skipif(AWAY, reason="held against torch on this processor, digit by digit")
WORKERS = pytest.mark.parametrize("workers", [1, 2, 3])
SEVERAL = pytest.mark.parametrize("workers", [2, 3])
STORES = ["allreduce", "bsp", "async", "ssp", "dssp", "groups", "localsgd"]
"""All that, of a gradient that never changes, end where one process ends."""
FREE = [name for name, traits in known_strategies().items() if not traits.lockstep]
LOCKSTEP = [n for n, traits in known_strategies().items() if traits.lockstep and n != "single"]
MOMENTUM = Script(optimizer="momentum", decay=0.01)


def _hold(script: Script, workers: int, folder: Path, strategy: str = "allreduce") -> None:
    wanted = train_plain(script)
    for found in train_workers(script, workers, folder, strategy):
        assert_as_plain(found, wanted, script)


def _linear() -> nn.Linear:
    model = nn.Linear(FEATURES, CLASSES).double()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.linspace(-1, 1 + number, parameter.numel()).view_as(parameter))
    return model


def _batches(script: Script) -> list[tuple[Tensor, Tensor]]:
    """The global batches of the first pass."""
    x, y = data_of(script)
    return [(x[part], y[part]) for part in order(len(x), SEED, 0).split(script.batch)]


def _run(workers: int, folder: Path, work: Callable[[int], Any], **chosen: Any) -> list[Any]:
    return as_ranks(workers, folder, work, RunSettings(**{"seed": SEED, **chosen}))


# -- unfreezing and added groups -------------------------------------------------------------


@WORKERS
@pytest.mark.parametrize("late", [(1, 0), (0, 3)], ids=["at an epoch", "after a few batches"])
@pytest.mark.parametrize("branch", ["unfrozen", "added"])
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_a_block_that_is_trained_later_is_trained(
    tmp_path: Path, workers: int, branch: Any, late: tuple[int, int], optimizer: str
) -> None:
    script = Script(optimizer=optimizer, decay=0.01, branch=branch, late=late)
    _hold(script, workers, tmp_path)


@WORKERS
@pytest.mark.parametrize("branch", ["unfrozen", "added"])
def test_a_block_may_be_frozen_again(tmp_path: Path, workers: int, branch: Any) -> None:
    script = replace(MOMENTUM, branch=branch, late=(1, 0), frozen_again=2, epochs=3)
    _hold(script, workers, tmp_path)


@WORKERS
def test_a_block_frozen_from_the_second_epoch_on_stays_as_it_is(
    tmp_path: Path, workers: int
) -> None:
    _hold(replace(MOMENTUM, branch="used", frozen_again=1), workers, tmp_path)


@pytest.mark.parametrize("way", ["unfrozen", "added", "added with a group to itself"])
@pytest.mark.parametrize("strategy", STORES)
@SEVERAL
def test_trained_later_under_every_strategy(
    tmp_path: Path, workers: int, strategy: str, way: str
) -> None:
    """The gradient is 1 everywhere and always, so each batch moves each weight by the rate."""
    rate, batches, epochs = 0.1, 4, 3
    x = torch.ones(12 * batches, 1, dtype=torch.float64)

    def work(rank: int) -> list[float]:
        early, late = (nn.Linear(1, 1, bias=False).double() for _ in range(2))
        for layer in (early, late):
            nn.init.zeros_(layer.weight)
        late.requires_grad_(False)
        model = nn.ModuleList([early, late])
        given = model.parameters() if way == "unfrozen" else early.parameters()
        optimizer = torch.optim.SGD(given, lr=rate)
        run = phalanx.join(model, optimizer)
        for epoch in run.epochs(epochs):
            if epoch == 1:
                late.requires_grad_(True)
                if way == "added":
                    optimizer.add_param_group({"params": [late.weight]})
                elif way != "unfrozen":
                    optimizer.add_param_group({"params": late.parameters(), "lr": rate / 4})
            for (part,) in run.batches((x,), batch=12):
                run.backward((early(part) + late(part)).mean())
                run.step()
        return [float(early.weight), float(late.weight)]

    moved = rate * batches
    slower = 0.25 if way == "added with a group to itself" else 1.0
    for early, late in _run(workers, tmp_path, work, strategy=strategy):
        assert early == pytest.approx(-moved * epochs, rel=1e-9)
        assert late == pytest.approx(-moved * (epochs - 1) * slower, rel=1e-9)


# -- reading gradients -----------------------------------------------------------------------


@WORKERS
@pytest.mark.parametrize("by", ["run.backward", "backward"])
def test_a_gradient_reads_as_that_of_one_process(tmp_path: Path, workers: int, by: str) -> None:
    """In every batch, also in the last one, which is uneven."""
    script = Script()

    def work(rank: int) -> list[Tensor]:
        model, seen = _linear(), []
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
    for x, y in _batches(script):
        model = _linear()
        F.cross_entropy(model(x), y).backward()
        wanted.append(model.weight.grad)
    for seen in _run(workers, tmp_path, work):
        for found, gradient in zip(seen, wanted, strict=True):
            assert gradient is not None
            assert_near(found, gradient, "gradient")


@WORKERS
@pytest.mark.parametrize("backward", ["run", "plain"])
@pytest.mark.parametrize("clip", ["norm", "value", "own", "assigned", "look", "step"])
def test_clipping_between_backward_and_step(
    tmp_path: Path, workers: int, clip: Any, backward: Any
) -> None:
    """Norms are compared, too, where the script sees them."""
    _hold(replace(MOMENTUM, clip=clip, backward=backward), workers, tmp_path)


@WORKERS
@pytest.mark.parametrize("backward", ["run", "plain"])
def test_a_backward_pass_after_a_look_adds_to_what_was_seen(
    tmp_path: Path, workers: int, backward: Any
) -> None:
    script = replace(MOMENTUM, clip="norm", clip_each=True, accumulate=2, backward=backward)
    _hold(script, workers, tmp_path / "clipped")
    _hold(replace(script, clip="look"), workers, tmp_path / "seen")


@SEVERAL
@pytest.mark.parametrize("clip", ["norm", "look", "own"])
def test_gradients_are_read_while_a_worker_has_no_samples(
    tmp_path: Path, workers: int, clip: Any
) -> None:
    script = replace(MOMENTUM, samples=33, clip=clip)
    assert script.leaves_idle(workers)
    _hold(script, workers, tmp_path)


@SEVERAL
def test_a_gradient_that_one_worker_alone_reads_is_right_or_refused(
    tmp_path: Path, workers: int
) -> None:
    script = Script()

    def work(rank: int) -> tuple[Tensor, list[float]]:
        model, seen = _linear(), []
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        for x, y in run.batches(data_of(script), batch=script.batch):
            run.backward(F.cross_entropy(model(x), y))
            if run.is_first:  # as for a figure in a log
                assert model.weight.grad is not None
                seen.append(float(model.weight.grad.norm()))
            run.step()
        run.finish()
        return model.weight.detach().clone(), seen

    model, norms = _linear(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in _batches(script):
        F.cross_entropy(model(x), y).backward()
        assert model.weight.grad is not None
        norms.append(float(model.weight.grad.norm()))
        optimizer.step()
        optimizer.zero_grad()
    try:
        ended = _run(workers, tmp_path, work)
    except PhalanxError as error:
        assert error.remedy
        return
    assert ended[0][1] == pytest.approx(norms, rel=1e-10)
    for weights, _ in ended:
        assert_near(weights, model.weight.detach(), "weights")


def _two_models() -> tuple[nn.Linear, nn.Linear]:
    one, two = _linear(), nn.Linear(CLASSES, CLASSES).double()
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
        *models, _batches(script), lambda loss: loss.backward(), lambda i: plain_step(made[i])
    )
    for ended in _run(workers, tmp_path, work):
        for found, value in zip(ended, wanted, strict=True):
            assert_near(found, value, "weights")


# -- accumulation ----------------------------------------------------------------------------


@WORKERS
@pytest.mark.parametrize("backward", ["run", "plain"])
@pytest.mark.parametrize("divided", [True, False], ids=["divided", "added up"])
@pytest.mark.parametrize("last", ["step", "leave"])
def test_gradients_accumulate_as_everyone_writes_it(
    tmp_path: Path, workers: int, backward: Any, divided: bool, last: Any
) -> None:
    """With a last batch that is smaller than the others, and a last window that is."""
    script = replace(MOMENTUM, accumulate=4, backward=backward, divided=divided, last=last)
    assert script.length % script.accumulate
    _hold(script, workers, tmp_path)


@WORKERS
@pytest.mark.parametrize("zero", ["top", "bottom", "model"])
@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_are_zeroed_where_the_script_does_it(
    tmp_path: Path, workers: int, zero: Any, to_none: bool
) -> None:
    """What a last window left is dropped at the top of the next one, or adds to it."""
    script = replace(MOMENTUM, accumulate=4, last="leave", zero=zero, to_none=to_none)
    _hold(script, workers, tmp_path)


@SEVERAL
def test_accumulated_batches_of_a_worker_without_samples_count(
    tmp_path: Path, workers: int
) -> None:
    _hold(replace(MOMENTUM, samples=33, accumulate=3), workers, tmp_path)


@WORKERS
def test_fit_takes_the_mean_of_accumulated_batches(tmp_path: Path, workers: int) -> None:
    script, model = Script(samples=48), _linear()

    def work(rank: int) -> Tensor:
        model = _linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        phalanx.fit(
            model, optimizer=optimizer, loss=F.cross_entropy, train=data_of(script),
            epochs=1, batch=script.batch, accumulate=3,
        )  # fmt: skip
        return model.weight.detach()

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number, (x, y) in enumerate(_batches(script), 1):
        (F.cross_entropy(model(x), y) / 3).backward()
        if number % 3 == 0:
            optimizer.step()
            optimizer.zero_grad()
    for found in _run(workers, tmp_path, work):
        assert_near(found, model.weight.detach(), "weights")


# -- sums and means --------------------------------------------------------------------------

SUMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "of torch": lambda out, y: F.cross_entropy(out, y, reduction="sum"),
    "by hand": lambda out, y: F.cross_entropy(out, y, reduction="none").sum(),
    "of squares": lambda out, y: (out - F.one_hot(y, CLASSES)).pow(2).sum(),
    "divided by a constant": lambda out, y: F.cross_entropy(out, y, reduction="sum") / 8,
    "and a mean": lambda out, y: F.cross_entropy(out, y) + 0.1 * out.pow(2).sum(),
}
MEANS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
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


def _trained_with(
    loss: Callable[[Tensor, Tensor], Tensor], by: str = "run.backward", **declared: Any
) -> Callable[[int], Tensor]:
    script = Script()

    def work(rank: int) -> Tensor:
        model = _linear()
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.01), **declared)
        for x, y in run.batches(data_of(script), batch=script.batch):
            error = loss(model(x), y)
            run.backward(error) if by == "run.backward" else error.backward()
            run.step()
        run.finish()
        return model.weight.detach()

    return work


def _trained_plainly(loss: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    model = _linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in _batches(Script()):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return model.weight.detach()


@WORKERS
@pytest.mark.parametrize("name", ["of torch", "by hand", "of squares", "divided by a constant"])
@pytest.mark.parametrize("by", ["run.backward", "backward"])
def test_a_declared_sum_is_that_of_one_process(
    tmp_path: Path, workers: int, name: str, by: str
) -> None:
    wanted = _trained_plainly(SUMS[name])
    for found in _run(workers, tmp_path, _trained_with(SUMS[name], by, loss="sum")):
        assert_near(found, wanted, "weights")


@pytest.mark.parametrize("name", SUMS)
@pytest.mark.parametrize("by", ["run.backward", "backward"])
def test_a_sum_that_is_not_declared_is_refused_or_right(tmp_path: Path, name: str, by: str) -> None:
    work, wanted = _trained_with(SUMS[name], by), _trained_plainly(SUMS[name])
    (alone,) = _run(1, tmp_path / "one", work)
    assert_near(alone, wanted, "weights of one worker")
    try:
        ended = _run(2, tmp_path / "two", work)
    except InputError as error:
        assert "sum" in error.cause
        assert 'loss="sum"' in error.remedy
        return
    for found in ended:
        assert_near(found, wanted, "weights")


@pytest.mark.parametrize("name", MEANS)
@SEVERAL
def test_a_mean_is_not_taken_for_a_sum(tmp_path: Path, workers: int, name: str) -> None:
    """Although there are sums in it, of a sample or of parameters."""

    wanted = _trained_plainly(MEANS[name])
    for found in _run(workers, tmp_path, _trained_with(MEANS[name])):
        assert_near(found, wanted, "weights")


def test_a_penalty_of_the_parameters_is_no_sum_over_the_batch(tmp_path: Path) -> None:
    _hold(replace(MOMENTUM, penalty=True), 2, tmp_path)


def test_fit_refuses_a_sum_or_trains_with_it_as_one_process(tmp_path: Path) -> None:
    script, loss = Script(), nn.CrossEntropyLoss(reduction="sum")

    def work(rank: int) -> Tensor:
        model = _linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        phalanx.fit(model, optimizer=optimizer, loss=loss, train=data_of(script), epochs=1, batch=8)
        return model.weight.detach()

    try:
        ended = _run(2, tmp_path, work)
    except InputError as error:
        assert "sum" in error.cause
        assert error.remedy
        return
    for found in ended:
        assert_near(found, _trained_plainly(loss), "weights")


WEIGHTED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "weights of classes": lambda out, y: F.cross_entropy(
        out, y, weight=torch.tensor([1.0, 5.0, 0.2], dtype=torch.float64)
    ),
    "a class that is ignored": lambda out, y: F.cross_entropy(out, y, ignore_index=1),
}


@pytest.mark.parametrize("name", WEIGHTED)
def test_a_mean_that_is_none_over_samples_is_refused_or_right(tmp_path: Path, name: str) -> None:
    """Torch divides such a loss by the weights it has seen, which differ between workers."""
    try:
        ended = _run(2, tmp_path, _trained_with(WEIGHTED[name]))
    except InputError as error:
        assert error.remedy
        return
    for found in ended:
        assert_near(found, _trained_plainly(WEIGHTED[name]), "weights")


# -- rates that differ -----------------------------------------------------------------------


def _with_options(change: Callable[[dict[str, Any], int], None]) -> Callable[[int], None]:
    """A script that sets an option of its optimizer after the first pass."""
    script = Script()

    def work(rank: int) -> None:
        model = _linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        run = phalanx.join(model, optimizer)
        for _ in run.epochs(2):
            for x, y in run.batches(data_of(script), batch=script.batch):
                run.backward(F.cross_entropy(model(x), y))
                run.step()
            change(optimizer.param_groups[0], rank)

    return work


@pytest.mark.parametrize("strategy", LOCKSTEP)
@pytest.mark.parametrize("option", ["lr", "momentum", "weight_decay"])
def test_options_that_differ_between_workers_are_refused(
    tmp_path: Path, strategy: str, option: str
) -> None:
    def change(group: dict[str, Any], rank: int) -> None:
        group[option] = 0.01 * (1 + rank)

    with pytest.raises(InputError) as refused:
        _run(2, tmp_path, _with_options(change), strategy=strategy)
    assert option in refused.value.cause or "rate" in refused.value.cause
    assert refused.value.remedy


@pytest.mark.parametrize("strategy", LOCKSTEP)
def test_options_that_change_alike_are_followed(tmp_path: Path, strategy: str) -> None:
    def change(group: dict[str, Any], rank: int) -> None:
        group.update(lr=0.02, momentum=0.1, weight_decay=0.01)

    _run(2, tmp_path, _with_options(change), strategy=strategy)


def test_a_plateau_of_each_workers_own_loss_is_refused_when_rates_diverge(tmp_path: Path) -> None:
    script = Script()

    def work(rank: int) -> None:
        model = _linear()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = phalanx.join(model, optimizer)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        for epoch in run.epochs(4):
            for x, y in run.batches(data_of(script), batch=script.batch):
                run.backward(F.cross_entropy(model(x), y))
                run.step()
            plateau.step(epoch if rank else -epoch)  # one gets worse, the other better

    with pytest.raises(InputError, match="rate"):
        _run(2, tmp_path, work)


@WORKERS
def test_a_plateau_of_an_evaluated_figure_is_that_of_one_process(
    tmp_path: Path, workers: int
) -> None:
    _hold(replace(MOMENTUM, schedule="plateau", epochs=4), workers, tmp_path)


def test_buffers_are_alike_when_a_script_tests_the_model_itself(tmp_path: Path) -> None:
    """Statistics of batch norm, which each worker has of its own samples."""
    script, probe = Script(), torch.linspace(-1, 1, 4 * FEATURES, dtype=torch.float64).view(4, -1)

    def work(rank: int) -> list[Tensor]:
        model = nn.Sequential(nn.BatchNorm1d(FEATURES), nn.Linear(FEATURES, CLASSES)).double()
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        seen = []
        for _ in run.epochs(2):
            for x, y in run.batches(data_of(script), batch=script.batch):
                run.backward(F.cross_entropy(model(x), y))
                run.step()
            model.eval()
            with torch.no_grad():
                seen.append(model(probe))
            model.train()
        return seen

    one, two = _run(2, tmp_path, work)
    for a, b in zip(one, two, strict=True):
        assert_near(a, b, "outputs")


# -- state that a script saves ---------------------------------------------------------------


@WORKERS
@pytest.mark.parametrize("saver", ["all", "first"])
@pytest.mark.parametrize("optimizer", ["momentum", "adam", "adagrad"])
@pytest.mark.parametrize("branch", ["none", "unfrozen", "added"])
def test_states_are_right_whenever_a_script_saves_them(
    tmp_path: Path, workers: int, saver: Any, optimizer: str, branch: Any
) -> None:
    """Of the model, of a part of it, and of the optimizer: in mid-epoch, and between steps."""
    saves = ((0, 0), (0, 3), (1, 1), (1, 2))
    script = Script(
        optimizer=optimizer, branch=branch, saves=saves, saver=saver, accumulate=2, zero="top"
    )
    _hold(script, workers, tmp_path)


@WORKERS
def test_the_state_of_a_part_is_small_on_disk(tmp_path: Path, workers: int) -> None:
    script = Script()

    def work(rank: int) -> int:
        model = nn.Sequential(nn.Linear(FEATURES, 2000), nn.Linear(2000, CLASSES)).double()
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
        file = io.BytesIO()
        for number, (x, y) in enumerate(run.batches(data_of(script), batch=script.batch)):
            run.backward(F.cross_entropy(model(x), y))
            run.step()
            if number == 2:
                torch.save(model[1].state_dict(), file)
        run.finish()
        return file.tell()

    own = 8 * (2000 * CLASSES + CLASSES)
    for size in _run(workers, tmp_path, work):
        assert own < size < own + 4000


@pytest.mark.parametrize("saver", ["all", "first"])
@pytest.mark.parametrize("strategy", STORES)
@SEVERAL
def test_the_state_of_an_optimizer_in_the_loop(
    tmp_path: Path, workers: int, strategy: str, saver: str
) -> None:
    """Each gradient is 1: after n steps Adam has 1 - 0.9ⁿ, and says n."""
    x = torch.ones(48, 1, dtype=torch.float64)
    seen: list[tuple[int, dict[str, Any], dict[str, Tensor]]] = []

    def work(rank: int) -> None:
        model = nn.Sequential(nn.Linear(1, 3, bias=False), nn.Linear(3, 1, bias=False)).double()
        for parameter in model.parameters():
            nn.init.ones_(parameter)
        optimizer = torch.optim.Adam(model[0].parameters(), lr=1e-9)
        run = phalanx.join(model, optimizer)
        own = itertools.count(1)
        for _ in run.epochs(2):
            for (part,) in run.batches((x,), batch=12):
                run.backward(model(part).mean())
                run.step()
                number = next(own)
                if saver == "all" or run.is_first:
                    file = io.BytesIO()
                    torch.save([optimizer.state_dict(), model[0].state_dict()], file)
                    file.seek(0)
                    seen.append((number, *torch.load(file)))

    _run(workers, tmp_path, work, strategy=strategy)
    assert seen
    for own, state, part in seen:
        slots = state["state"][0]
        steps = float(slots["step"])
        assert own <= steps <= 8 * workers
        assert torch.allclose(slots["exp_avg"], torch.full((3, 1), 1 - 0.9**steps).double())
        assert state["param_groups"][0]["lr"] == pytest.approx(1e-9)
        assert_small(part)
        assert_small(slots)


# -- schedulers per batch --------------------------------------------------------------------


def _one_cycle(optimizer: torch.optim.Optimizer, turns: int) -> Any:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=turns)


def _plain_rates(script: Script, make: Callable[..., Any]) -> list[tuple[float, float]]:
    """After each pass: the rate, and the momentum that goes with it."""
    model, seen = _linear(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = make(optimizer, script.length * script.epochs + 1)
    for _ in range(script.epochs):
        for _ in range(script.length):
            optimizer.step()
            scheduler.step()
        group = optimizer.param_groups[0]
        seen.append((group["lr"], group["momentum"]))
    return seen


@pytest.mark.parametrize("speeds", [[1.0, 1.0, 1.0], [0.1, 0.02, 0.1]], ids=["equal", "unequal"])
@pytest.mark.parametrize("strategy", ["allreduce", *STORES[1:], "diloco"])
@SEVERAL
def test_a_schedule_per_batch_counts_global_progress(
    tmp_path: Path, workers: int, strategy: str, speeds: list[float]
) -> None:
    """It ends where it should, whoever had how many batches, and is alike after each pass."""
    script = Script(samples=97, batch=12, epochs=3)

    def work(rank: int) -> list[tuple[float, float]]:
        model, seen = _linear(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        run = phalanx.join(model, optimizer)
        scheduler = _one_cycle(optimizer, script.length * script.epochs + 1)
        for _ in run.epochs(script.epochs):
            for x, y in run.batches(data_of(script), batch=script.batch):
                run.backward(F.cross_entropy(model(x), y))
                run.step()
                scheduler.step()
            group = optimizer.param_groups[0]
            seen.append((group["lr"], group["momentum"]))
        return seen

    wanted = _plain_rates(script, _one_cycle)
    slow = speeds[:workers]
    for found in _run(workers, tmp_path, work, strategy=strategy, slow=slow):
        for one, other in zip(found, wanted, strict=True):
            assert one == pytest.approx(other, rel=1e-9)


@pytest.mark.parametrize("strategy", FREE)
def test_a_schedule_never_overruns_where_batches_are_taken_freely(
    tmp_path: Path, strategy: str
) -> None:
    """With as many turns as there are batches: one more would be an error of torch."""
    script = Script(samples=96, batch=8, epochs=2)

    def work(rank: int) -> list[float]:
        model, rates = _linear(), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = phalanx.join(model, optimizer)
        scheduler = _one_cycle(optimizer, script.length * script.epochs)
        for _ in run.epochs(script.epochs):
            for x, y in run.batches(data_of(script), batch=script.batch):
                run.backward(F.cross_entropy(model(x), y))
                run.step()
                rates.append(optimizer.param_groups[0]["lr"])
                scheduler.step()
        return [*rates, optimizer.param_groups[0]["lr"]]

    ended = _run(3, tmp_path, work, strategy=strategy, slow=[0.1, 0.01, 0.05])
    assert len({round(rates[-1], 12) for rates in ended}) == 1
    for rates in ended:
        highest = rates.index(max(rates))
        assert rates[highest:] == sorted(rates[highest:], reverse=True)
        assert rates[:highest] == sorted(rates[:highest])


@WORKERS
@pytest.mark.parametrize("schedule", ["onecycle", "lambda"])
@pytest.mark.parametrize("first", [True, False], ids=["made before joining", "made after"])
def test_schedules_per_batch_are_exact(
    tmp_path: Path, workers: int, schedule: Any, first: bool
) -> None:
    """Also where a worker has no samples of the last batch, and so does not step its own."""
    script = Script(samples=33, epochs=3, schedule=schedule, scheduler_first=first)
    _hold(script, workers, tmp_path)


@SEVERAL
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_schedule_per_step_of_accumulated_batches(
    tmp_path: Path, workers: int, optimizer: str
) -> None:
    script = Script(optimizer=optimizer, schedule="onecycle", per="step", accumulate=3)
    _hold(script, workers, tmp_path)


# -- a worker without samples ----------------------------------------------------------------


@SEVERAL
@pytest.mark.parametrize("what", ["average", "scaler", "moment"])
def test_a_worker_without_samples_of_a_last_batch_misses_nothing(
    tmp_path: Path, workers: int, what: str
) -> None:
    """It does not enter the loop's body, where scripts do more than a step."""
    chosen: dict[str, Script] = {
        "average": replace(MOMENTUM, samples=33, average="lerp"),
        "scaler": replace(MOMENTUM, samples=33, scaled=True, epochs=3),
        "moment": replace(MOMENTUM, samples=33, branch="unfrozen", late=(0, 4)),
    }
    script = chosen[what]
    wanted = train_plain(script)
    for found in train_workers(script, workers, tmp_path):
        assert_as_plain(found, wanted, script)
        for name, value in wanted.average.items():
            assert_near(found.average[name], value, f"average, {name}")


# -- between hosts ---------------------------------------------------------------------------

BETWEEN_HOSTS: dict[str, Script] = {
    "unfrozen": replace(MOMENTUM, branch="unfrozen", late=(0, 3)),
    "added": replace(MOMENTUM, branch="added", late=(1, 0)),
    "clipped": replace(MOMENTUM, clip="norm"),
    "clipped each": replace(MOMENTUM, clip="norm", clip_each=True, accumulate=2),
    "looked at": replace(MOMENTUM, clip="look", samples=33),
    "accumulated": replace(MOMENTUM, accumulate=4, backward="plain"),
    "sum": replace(MOMENTUM, loss="sum"),
    "saved": Script(optimizer="adam", saves=((0, 3), (1, 1))),
    "one cycle": replace(MOMENTUM, schedule="onecycle", samples=33),
}


@pytest.fixture(params=["at the step", "ahead"])
def two_hosts(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Gradients leave at their step, or as soon as they are there."""
    monkeypatch.setattr(ranks, "HOSTS", 2)
    monkeypatch.setattr(ranks, "places", lambda: None)
    if request.param == "ahead":
        monkeypatch.setattr(ahead, "WORTHWHILE", 0)
        monkeypatch.setattr(early_gradients, "LEAST", 1)


@pytest.mark.usefixtures("two_hosts")
@pytest.mark.parametrize("name", BETWEEN_HOSTS)
def test_between_two_hosts_too(tmp_path: Path, name: str) -> None:
    """Two workers on the first, one on the second."""
    _hold(BETWEEN_HOSTS[name], 3, tmp_path)


@pytest.mark.usefixtures("two_hosts")
@pytest.mark.parametrize("strategy", ["async", "ssp", "localsgd", "bsp"])
@pytest.mark.parametrize("name", ["unfrozen", "added", "saved", "one cycle"])
def test_every_strategy_between_two_hosts(tmp_path: Path, name: str, strategy: str) -> None:
    script = BETWEEN_HOSTS[name]
    ended = train_workers(script, 3, tmp_path, strategy)
    wanted = train_plain(script)
    for outcome in ended:
        assert outcome.last_rates == pytest.approx(wanted.last_rates, rel=1e-9)
        assert outcome.weights.keys() == wanted.weights.keys()
        for key, value in outcome.weights.items():
            assert torch.equal(value, ended[0].weights[key]), key
            assert bool(value.isfinite().all()), key
    if strategy == "bsp":
        for outcome in ended:
            assert_as_plain(outcome, wanted, script)
    assert_same_optimizer(ended[0].optimizer, ended[-1].optimizer, "optimizer at the end")
