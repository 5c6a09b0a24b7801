"""``--precision float16``: losses are scaled, and nothing else of a training is other for that.

A scale is a power of two. So a loop that computes in float32, and whose losses are scaled, ends
with the very bits of one whose losses are not: under every strategy, with every codec.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from devices import AWAY
from plain_compare import assert_near
from ranks import as_ranks
from strategy_cases import EVERY, SWITCHED, quick
from torch import Tensor, nn
from training import Training, assert_identical

import phalanx
from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.data.reader import order
from phalanx.observe.summary.summary import summarise
from phalanx.train.api.run import Run
from phalanx.train.control.directives import Directive, Kind
from phalanx.train.engine.exchange import SharedExchange
from phalanx.train.worker import build_worker as assembly

SAMPLES, BATCH, EPOCHS = 48, 12, 3
FLOAT16: dict[str, Any] = {"precision": "float16"}
torch.manual_seed(5)
X = torch.randn(SAMPLES, 6)
Y = (X[:, 0] + X[:, 1] > 0).long()

pytestmark = pytest.mark.skipif(AWAY, reason="rounds otherwise on a GPU")


def _model(rate: float = 0.1) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    drawn = torch.Generator().manual_seed(7)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    for parameter in model.parameters():
        nn.init.uniform_(parameter, -0.4, 0.4, generator=drawn)
    return model, torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)


def _scaler(run: Run) -> torch.amp.GradScaler:
    scaler = run._parts.trained.weight.loss_scale.scaler
    assert scaler is not None
    return scaler


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scale that changes every few steps."""

    def made(precision: str, optimizers: Any) -> torch.amp.GradScaler | None:
        if precision != "float16":
            return None
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=3)
        scaler.scale(torch.ones(()))
        return scaler

    monkeypatch.setattr(assembly, "loss_scaler", made)


# -- as without a scale ----------------------------------------------------------------------


@pytest.mark.parametrize("spec", [*quick(EVERY), *SWITCHED])
@pytest.mark.skipif(ranks.HOSTS > 1, reason="free strategies depend on timing there")
def test_a_scale_changes_nothing_but_the_range(tmp_path: Path, restless: None, spec: str) -> None:
    size: dict[str, Any] = {"epochs": 3, "accumulate": 2}
    plain = Training(tmp_path / "plain", spec, 3, **size).run()
    scaled = Training(tmp_path / "scaled", spec, 3, settings=FLOAT16, **size).run()
    for rank in range(3):
        assert_identical(scaled.state(rank), plain.state(rank))
    losses = [summarise(RunPaths(tmp_path / name)).train_loss for name in ("plain", "scaled")]
    assert losses[0] == losses[1] is not None


def _clipping(rank: int) -> tuple[dict[str, Tensor], list[float]]:
    """By the script itself, that also looks at what it clips."""
    (model, optimizer), norms = _model(), []
    run = phalanx.join(model, optimizer)
    for _ in run.epochs(EPOCHS):
        for x, y in run.batches((X, Y), batch=BATCH):
            run.backward(nn.functional.cross_entropy(model(x), y))
            norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.05)))
            run.step()
    return dict(model.state_dict()), norms


@pytest.mark.parametrize(
    ("spec", "workers"),
    [("single", 1), ("allreduce", 2), ("bsp", 2), ("async", 2), ("localsgd:every=2", 2)],
)
def test_gradients_that_a_script_reads_and_clips(
    tmp_path: Path, restless: None, spec: str, workers: int
) -> None:
    found = [
        as_ranks(workers, tmp_path / name, _clipping, RunSettings(strategy=spec, precision=name))
        for name in ("float32", "float16")
    ]
    for (plain, norms), (scaled, scaled_norms) in zip(*found, strict=True):
        if spec != "allreduce":  # which finds the norm of float32 from the slices of the sum
            assert scaled_norms == norms
            assert_identical(scaled, plain)
            continue
        assert scaled_norms == pytest.approx(norms, rel=1e-6)
        for name, values in plain.items():
            assert_near(scaled[name], values, name, 1e-6)


def test_gradients_that_were_read_are_not_exchanged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agreed: list[int] = []
    plain = SharedExchange._step_agreed

    def step_agreed(self: Any, index: int, clipped: bool) -> Any:
        agreed.append(index)
        assert not clipped
        return plain(self, index, clipped)

    monkeypatch.setattr(SharedExchange, "_step_agreed", step_agreed)
    as_ranks(2, tmp_path, _clipping, RunSettings(strategy="allreduce", precision="float16"))
    assert len(agreed) == 2 * EPOCHS * SAMPLES // BATCH


def _clip_in_the_step(run: Run, model: nn.Module, error: Tensor) -> None:
    run.backward(error)
    run.step(clip=0.05)


def _put_instead(run: Run, model: nn.Module, error: Tensor) -> None:
    run.backward(error)
    for parameter in model.parameters():
        parameter.grad = parameter.detach() * 0.5
    run.step()


def _put_after_dropping(run: Run, model: nn.Module, error: Tensor) -> None:
    members = list(model.parameters())
    found = torch.autograd.grad(error, members, retain_graph=True)
    run.backward(error)
    model.zero_grad()
    for parameter, gradient in zip(members, found, strict=True):
        parameter.grad = gradient
    run.step()


def _put_one(run: Run, model: nn.Module, error: Tensor) -> None:
    run.backward(error)
    bias = list(model.parameters())[-1]
    bias.grad = torch.zeros_like(bias)
    run.step()


def _put_first(run: Run, model: nn.Module, error: Tensor) -> None:
    for parameter in model.parameters():
        parameter.grad = parameter.detach() * 0.5
    run.backward(error)
    run.step()


@pytest.mark.parametrize(
    "step", [_clip_in_the_step, _put_instead, _put_after_dropping, _put_one, _put_first]
)
@pytest.mark.parametrize("workers", [1, 2])
def test_what_a_script_clips_or_puts_there_is_not_scaled(
    tmp_path: Path, restless: None, workers: int, step: Any
) -> None:
    def work(rank: int) -> dict[str, Tensor]:
        model, optimizer = _model()
        run = phalanx.join(model, optimizer)
        for x, y in run.batches((X, Y), batch=BATCH):
            step(run, model, nn.functional.cross_entropy(model(x), y))
        run.finish()
        return dict(model.state_dict())

    plain, scaled = (
        as_ranks(workers, tmp_path / name, work, RunSettings(precision=name))
        for name in ("float32", "float16")
    )
    for rank in range(workers):
        assert_identical(scaled[rank], plain[rank])


@pytest.mark.parametrize("ends", ["with its data", "early"])
def test_gradients_that_are_left_when_a_training_ends_are_not_scaled(
    tmp_path: Path, restless: None, ends: str
) -> None:
    def work(rank: int) -> dict[str, Tensor]:
        model, optimizer = _model()
        run = phalanx.join(model, optimizer)
        for _ in run.epochs(1):
            for number, (x, y) in enumerate(run.batches((X, Y), batch=BATCH)):
                run.backward(nn.functional.cross_entropy(model(x), y))
                if number == 2:
                    run.step()
                if number == 1 and ends == "early":
                    break
        run.finish()
        optimizer.step()
        return dict(model.state_dict())

    plain, scaled = (
        as_ranks(1, tmp_path / name, work, RunSettings(precision=name))
        for name in ("float32", "float16")
    )
    assert_identical(scaled[0], plain[0])


# -- in float16 ------------------------------------------------------------------------------


def _plain(clip: float | None, small: float, accumulate: int) -> tuple[dict[str, Tensor], float]:
    """Plain torch, with a scaler of its own."""
    (model, optimizer), scaler = _model(0.1 / small), torch.amp.GradScaler("cpu")
    losses = []
    for epoch in range(EPOCHS):
        for i, some in enumerate(order(SAMPLES, 1, epoch, True).split(BATCH)):
            with torch.autocast("cpu", dtype=torch.float16):
                error = nn.functional.cross_entropy(model(X[some]), Y[some]) * small
            losses.append(error.item())
            scaler.scale(error / accumulate).backward()
            if (i + 1) % accumulate:
                continue
            if clip is not None:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return dict(model.state_dict()), sum(losses[-SAMPLES // BATCH :]) * BATCH / SAMPLES


@pytest.mark.parametrize(
    ("clip", "small", "accumulate"),
    [(None, 1.0, 1), (0.05, 1.0, 1), (None, 1e-7, 1), (0.1, 1.0, 2)],
)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_fit_ends_where_plain_torch_ends(
    tmp_path: Path, workers: int, clip: float | None, small: float, accumulate: int
) -> None:
    """``small``: gradients that without a scale would all be zero in float16."""

    def work(rank: int) -> dict[str, Tensor]:
        model, optimizer = _model(0.1 / small)
        run = phalanx.fit(
            model, optimizer=optimizer, train=(X, Y), epochs=EPOCHS, batch=BATCH, clip=clip,
            loss=lambda outputs, y: nn.functional.cross_entropy(outputs, y) * small,
            accumulate=accumulate,
        )  # fmt: skip
        assert run.precision == "float16"
        return dict(model.state_dict())

    spec = "allreduce" if workers > 1 else "single"
    found = as_ranks(
        workers, tmp_path, work, RunSettings(strategy=spec, seed=1, precision="float16")
    )
    wanted, loss = _plain(clip, small, accumulate)
    for own in found:
        for name, value in wanted.items():
            assert torch.allclose(own[name], value, rtol=0, atol=2e-3), name
            assert workers > 1 or torch.equal(own[name], value)
    assert any(not torch.equal(found[0][n], v) for n, v in _model()[0].state_dict().items())
    reported = summarise(RunPaths(tmp_path)).train_loss
    assert reported == pytest.approx(loss, rel=1e-2)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_loss_in_float16_itself_finds_its_scale(tmp_path: Path, workers: int) -> None:
    """Its own gradient is the scale, of which float16 holds no more than 65504."""

    def work(rank: int) -> tuple[float, bool]:
        model, optimizer = _model()
        run, kinds = phalanx.join(model, optimizer), set()
        for _ in run.epochs(EPOCHS):
            for x, y in run.batches((X, Y), batch=BATCH):
                with run.autocast():
                    error = ((model(x) - nn.functional.one_hot(y, 2)) ** 2).mean()
                kinds.add(error.dtype)
                run.backward(error)
                run.step()
        return _scaler(run).get_scale(), kinds == {torch.float16}

    found = as_ranks(workers, tmp_path, work, RunSettings(precision="float16"))
    assert found == [(2.0**15, True)] * workers
    summary = summarise(RunPaths(tmp_path))
    assert [refused.step for refused in summary.nonfinite] == [1]
    assert summary.train_loss is not None and summary.train_loss < 1.0


def _nothing(model: nn.Module) -> None:
    pass


def _clip(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1e3)


def _limit_each(model: nn.Module) -> None:
    nn.utils.clip_grad_value_(model.parameters(), 0.01)


def _make_finite(model: nn.Module) -> None:
    for parameter in model.parameters():
        assert parameter.grad is not None
        torch.nan_to_num_(parameter.grad, 0.0, 1.0, -1.0)


@pytest.mark.parametrize("change", [_nothing, _clip, _limit_each, _make_finite])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_a_step_that_overflows_on_one_worker_is_skipped_by_all(
    tmp_path: Path, workers: int, change: Any
) -> None:
    """Also where the script hides it: ``scaler.unscale_`` too would find it before."""

    def work(rank: int) -> tuple[list[float], list[bool]]:
        model, optimizer = _model()
        run = phalanx.join(model, optimizer)
        scales: list[float] = []
        moved: list[bool] = []
        for _ in run.epochs(2):
            for x, y in run.batches((X, Y), batch=BATCH):
                bad = len(scales) == 2 and rank == workers - 1
                with run.autocast():
                    error = nn.functional.cross_entropy(model(x), y)
                run.backward(error * 1e36 if bad else error)  # finite, but not times the scale
                before = model[0].weight.detach().clone()
                change(model)
                run.step()
                moved.append(not torch.equal(before, model[0].weight))
                scales.append(_scaler(run).get_scale())
        return scales, moved

    found = as_ranks(workers, tmp_path, work, RunSettings(precision="float16", on_nonfinite="stop"))
    for scales, moved in found:
        assert scales == [2.0**16] * 2 + [2.0**15] * 6
        assert moved == [step != 2 for step in range(8)]
    assert summarise(RunPaths(tmp_path)).nonfinite_steps == 1


@pytest.mark.parametrize("workers", [1, 2])
def test_a_script_that_skips_what_overflowed_gets_a_smaller_scale(
    tmp_path: Path, workers: int
) -> None:
    def work(rank: int) -> int:
        (model, optimizer), steps = _model(), 0
        run = phalanx.join(model, optimizer)
        for x, y in run.batches((X, Y), batch=BATCH):
            with run.autocast():  # a loss in float16: of its first scale it is infinite
                error = ((model(x) - nn.functional.one_hot(y, 2)) ** 2).mean()
            run.backward(error)
            if not torch.isfinite(nn.utils.clip_grad_norm_(model.parameters(), 1.0)):
                optimizer.zero_grad()
                continue
            run.step()
            steps += 1
        return steps

    found = as_ranks(workers, tmp_path, work, RunSettings(precision="float16"))
    assert found == [SAMPLES // BATCH - 1] * workers


# -- checkpoints -----------------------------------------------------------------------------


class Watched(Training):
    def _prepare(self, run: Run) -> None:
        super()._prepare(run)
        self.scalers = [*getattr(self, "scalers", []), _scaler(run)]


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("at", [2, 4])
@pytest.mark.parametrize("spec", ["single", "allreduce", "localsgd:every=2"])
def test_a_resumed_run_goes_on_with_its_scale(
    tmp_path: Path, restless: None, spec: str, at: int, accumulate: int
) -> None:
    workers = 1 if spec == "single" else 2
    size: dict[str, Any] = {"accumulate": accumulate, "epochs": 3}
    unbroken = Watched(tmp_path / "unbroken", spec, workers, settings=FLOAT16, **size).run()
    saved = Watched(
        tmp_path / "saved",
        spec,
        workers,
        commands={at: Directive(Kind.SAVE)},
        settings=FLOAT16,
        **size,
    ).run()
    path, _ = saved.checkpoint()
    settings = FLOAT16 | {"resume": str(path)}
    resumed = Watched(tmp_path / "resumed", spec, workers, settings=settings, **size).run()
    for rank in range(workers):
        assert_identical(resumed.state(rank), unbroken.state(rank))
    states = [scaler.state_dict() for scaler in unbroken.scalers + resumed.scalers]
    assert all(state == states[0] for state in states)
    assert states[0]["scale"] > 1024.0


@pytest.mark.parametrize(("before", "after"), [("float16", "float32"), ("float32", "float16")])
def test_accumulated_gradients_survive_another_precision(
    tmp_path: Path, restless: None, before: str, after: str
) -> None:
    size: dict[str, Any] = {"accumulate": 3, "epochs": 2}
    plain = Training(tmp_path / "plain", "allreduce", 2, **size).run()
    saved = Training(
        tmp_path / "saved", "allreduce", 2, commands={4: Directive(Kind.SAVE)},
        settings={"precision": before}, **size,
    ).run()  # fmt: skip
    path, _ = saved.checkpoint()
    settings = {"precision": after, "resume": str(path)}
    resumed = Training(tmp_path / "resumed", "allreduce", 2, settings=settings, **size).run()
    assert_identical(resumed.state(), plain.state())


# -- what is refused -------------------------------------------------------------------------


def _plain_backward(run: Run, model: nn.Module, x: Tensor, y: Tensor) -> None:
    nn.functional.cross_entropy(model(x), y).backward()
    run.step()


def _vector_backward(run: Run, model: nn.Module, x: Tensor, y: Tensor) -> None:
    losses = nn.functional.cross_entropy(model(x), y, reduction="none")
    losses.backward(torch.full_like(losses, 1 / len(losses)))
    run.step()


def _own_gradients(run: Run, model: nn.Module, x: Tensor, y: Tensor) -> None:
    run.backward(nn.functional.cross_entropy(model(x), y))
    run.step()
    members = list(model.parameters())
    found = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), members)
    for parameter, gradient in zip(members, found, strict=True):
        parameter.grad = gradient
    run.step()


def _own_scaler(run: Run, model: nn.Module, x: Tensor, y: Tensor) -> None:
    scaler = torch.amp.GradScaler("cpu")
    run.backward(scaler.scale(nn.functional.cross_entropy(model(x), y)))
    run.step(scaler=scaler)


def _scaler_steps(run: Run, model: nn.Module, x: Tensor, y: Tensor) -> None:
    scaler = torch.amp.GradScaler("cpu")
    run.backward(scaler.scale(nn.functional.cross_entropy(model(x), y)))
    scaler.step(run._parts.trained.optimizers[0])


def _adds_after_reading(run: Run, model: nn.Module, x: Tensor, y: Tensor) -> None:
    run.backward(nn.functional.cross_entropy(model(x), y))
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    run.backward(nn.functional.cross_entropy(model(x), y))


def _reads_what_is_not_trained(run: Run, model: nn.Module, x: Tensor, y: Tensor) -> None:
    model.factor = nn.Parameter(torch.ones(()))
    run._parts.steps._reads.watch()  # as if it had been there from the start
    run.backward(nn.functional.cross_entropy(model(x) * model.factor, y))
    assert model.factor.grad is not None


def _hook_of_a_parameter(run: Run, model: nn.Module, x: Tensor, y: Tensor) -> None:
    next(model.parameters()).register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    run.backward(nn.functional.cross_entropy(model(x), y))


def _hook_after_a_gradient(run: Run, model: nn.Module, x: Tensor, y: Tensor) -> None:
    run.backward(nn.functional.cross_entropy(model(x), y))
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # from here on there are hooks of the run
    run.step()
    run.backward(nn.functional.cross_entropy(model(x), y))
    run.step()
    next(model.parameters()).register_post_accumulate_grad_hook(lambda p: None)
    run.backward(nn.functional.cross_entropy(model(x), y))


def _hook_of_a_module(run: Run, model: nn.Module, x: Tensor, y: Tensor) -> None:
    model.register_full_backward_hook(lambda *_: None)
    run.backward(nn.functional.cross_entropy(model(x), y))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (_plain_backward, "without run.backward"),
        (_vector_backward, "without run.backward"),
        (_own_gradients, "without run.backward"),
        (_own_scaler, "a GradScaler of its own"),
        (_scaler_steps, "a GradScaler of its own"),
        (_adds_after_reading, "gradients were read"),
        (_reads_what_is_not_trained, "no optimizer trains"),
        (_hook_of_a_parameter, "the script has hooks"),
        (_hook_after_a_gradient, "the script has hooks"),
        (_hook_of_a_module, "the script has hooks"),
    ],
)
@pytest.mark.parametrize("workers", [1, 2])
def test_what_would_be_wrong_is_refused(tmp_path: Path, body: Any, said: str, workers: int) -> None:
    def work(rank: int) -> None:
        model, optimizer = _model()
        run = phalanx.join(model, optimizer)
        for x, y in run.batches((X, Y), batch=BATCH):
            body(run, model, x, y)

    with pytest.raises(InputError, match=said):
        as_ranks(workers, tmp_path, work, RunSettings(precision="float16"))


def _own_batches() -> None:
    model, optimizer = _model()
    run = phalanx.join(model, optimizer)
    nn.functional.cross_entropy(model(X), Y).backward()
    run.step(weight=1.0)


def _two_optimizers() -> None:
    (one, first), (other, second) = _model(), _model()
    phalanx.join([one, other], [first, second])


def _weights_in_float16() -> None:
    """As by torch: "Attempting to unscale FP16 gradients"."""
    model = nn.Linear(6, 2).half()
    phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (_own_batches, r"without run\.backward"),
        (_two_optimizers, "one optimizer; the script has 2"),
        (_weights_in_float16, "keeps weights in float32"),
    ],
)
def test_scripts_that_cannot_be_scaled_are_refused(tmp_path: Path, script: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        as_ranks(1, tmp_path, lambda rank: script(), RunSettings(precision="float16"))


def test_a_disabled_scaler_and_a_step_without_gradients_are_harmless(tmp_path: Path) -> None:
    def work(rank: int) -> float:
        model, optimizer = _model()
        run, scaler = phalanx.join(model, optimizer), torch.amp.GradScaler("cpu", enabled=False)
        for number, (x, y) in enumerate(run.batches((X, Y), batch=BATCH)):
            optimizer.zero_grad()
            bad = math.inf if number == 1 else 1.0
            run.backward(scaler.scale(nn.functional.cross_entropy(model(x), y) * bad))
            scaler.step(optimizer)
            scaler.update()
            run.step()
        return _scaler(run).get_scale()

    assert as_ranks(1, tmp_path, work, RunSettings(precision="float16")) == [2.0**15]
