"""Small training scripts of every kind, to run in plain torch and joined.

A :class:`Script` is a set of choices as people make them. :func:`train` is its loop, one for both:
what differs is the *world* it runs in, which is plain torch (:class:`Plain`) or a run
(:class:`Joined`). Both see the same samples in the same order.
"""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import pytest
import torch
from ranks import as_ranks
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import phalanx
from phalanx.core.settings import RunSettings
from phalanx.data.ledger import order
from phalanx.train.run import Run

FEATURES, CLASSES, SEED = 5, 3, 11
At = tuple[int, int]
"""A moment of a script: the epoch, and the batch in it."""
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}),
    "nesterov": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.8, "nesterov": True}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
    "amsgrad": (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.005, "momentum": 0.5}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.05}),
}


@dataclass(frozen=True)
class Script:
    """What somebody may write. The defaults are the shortest loop."""

    optimizer: str = "sgd"
    decay: float = 0.0
    groups: Literal[1, 2] = 1
    norm: bool = False
    """A LayerNorm in the model."""
    branch: Literal["none", "used", "odd", "unfrozen", "added"] = "none"
    """A second block: trained always, used in every second epoch only, or trained later."""
    late: At = (1, 0)
    """When the second block is unfrozen, or its group is added."""
    frozen_again: int = 99
    """The epoch from which on the second block is frozen again."""
    samples: int = 43
    batch: int = 8
    epochs: int = 2
    data: Literal["tuple", "dict", "loader", "dicts of a loader"] = "tuple"
    loss: Literal["mean", "mean by hand", "sum", "sum by hand"] = "mean"
    declared: bool = True
    """Whether a sum is declared when the script joins."""
    penalty: bool = False
    """A term of the parameters alone in the loss: it is no sum over the batch."""
    losses: Literal[1, 2] = 1
    """Backward passes for one batch."""
    backward: Literal["run", "plain"] = "run"
    accumulate: int = 1
    divided: bool = True
    """Whether the loss is divided by the number of accumulated batches."""
    last: Literal["step", "leave"] = "step"
    """Accumulated batches at the end of an epoch."""
    zero: Literal["none", "top", "bottom", "model"] = "none"
    to_none: bool = True
    clip: Literal["none", "norm", "value", "own", "assigned", "look", "step"] = "none"
    clip_each: bool = False
    """After every backward pass, not only before a step."""
    schedule: Literal["none", "step", "cosine", "onecycle", "lambda", "plateau", "own figure"] = (
        "none"
    )
    per: Literal["batch", "step"] = "batch"
    """How often the schedulers that are not stepped once an epoch are."""
    scheduler_first: bool = False
    """Whether the scheduler is made before the script joins."""
    average: Literal["none", "averaged", "lerp"] = "none"
    saves: tuple[At, ...] = ()
    saver: Literal["all", "first"] = "first"
    scaled: bool = False
    """With a GradScaler."""

    @property
    def length(self) -> int:
        """Batches of an epoch."""
        return math.ceil(self.samples / self.batch)

    @property
    def sums(self) -> bool:
        return self.loss.startswith("sum")

    def steps_at(self, number: int) -> bool:
        full = (number + 1) % self.accumulate == 0
        return full or (self.last == "step" and number + 1 == self.length)

    @property
    def turns(self) -> int:
        """How often a scheduler that is not stepped per epoch is."""
        each = self.length if self.per == "batch" else sum(map(self.steps_at, range(self.length)))
        return each * self.epochs

    def leaves_idle(self, workers: int) -> bool:
        """Whether the last batch has no samples for somebody."""
        return (self.samples % self.batch or self.batch) < workers


@dataclass
class Outcome:
    """What a script ends with, and what it saw on its way."""

    weights: dict[str, Tensor] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    average: dict[str, Tensor] = field(default_factory=dict)
    rates: dict[At, list[float]] = field(default_factory=dict)
    last_rates: list[float] = field(default_factory=list)
    norms: dict[At, float] = field(default_factory=dict)
    saved: dict[At, dict[str, Any]] = field(default_factory=dict)


class World(Protocol):
    """What a script calls that is not the same in plain torch and joined."""

    is_first: bool

    def epochs(self, count: int) -> Iterable[int]: ...

    def batches(self) -> Iterable[Any]: ...

    def backward(self, loss: Tensor) -> None: ...

    def step(self, clip: float | None, scaler: Any) -> None: ...

    def evaluate(self, metric: Callable[[Tensor, Tensor], Tensor]) -> float: ...


# -- what is trained -------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self, norm: bool, branch: bool) -> None:
        super().__init__()
        between = [nn.LayerNorm(7)] if norm else []
        self.body = nn.Sequential(nn.Linear(FEATURES, 7), *between, nn.Tanh())
        self.branch = nn.Sequential(nn.Linear(FEATURES, 7), nn.Tanh()) if branch else None
        self.head = nn.Linear(7, CLASSES)
        self.with_branch = branch

    def forward(self, x: Tensor) -> Tensor:
        inner = self.body(x)
        if self.with_branch and self.branch is not None:
            inner = inner + self.branch(x)
        return self.head(inner)  # type: ignore[no-any-return]


class Records(Dataset[dict[str, Tensor]]):
    """Samples with names."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        return {"x": self.x[number], "y": self.y[number]}


def model_of(script: Script) -> Net:
    """The same weights every time, whatever else draws random numbers."""
    model = Net(script.norm, script.branch != "none").double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(0.5 * drawn)
    if script.branch in ("unfrozen", "added"):
        assert model.branch is not None
        model.branch.requires_grad_(False)
    return model


def optimizer_of(script: Script, model: Net) -> torch.optim.Optimizer:
    later = script.branch == "added" and model.branch is not None
    without = {id(p) for p in model.branch.parameters()} if later else set()  # type: ignore[union-attr]
    given = [p for p in model.parameters() if id(p) not in without]
    kind, options = KINDS[script.optimizer]
    options = options | {"weight_decay": script.decay}
    if script.sums:
        options["lr"] = options["lr"] / script.batch
    if script.groups == 1:
        return kind(given, **options)  # type: ignore[no-any-return]
    weights = {"params": [p for p in given if p.ndim > 1]}
    biases = {"params": [p for p in given if p.ndim == 1], "lr": 0.3 * options["lr"]}
    return kind([weights, biases], **options)  # type: ignore[no-any-return]


def data_of(script: Script) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(script.samples, FEATURES, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, CLASSES, (script.samples,), generator=generator)


def scheduler_of(script: Script, optimizer: torch.optim.Optimizer) -> Any:
    if script.schedule == "step":
        return lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    if script.schedule == "cosine":
        return lr_scheduler.CosineAnnealingLR(optimizer, script.epochs + 1)
    if script.schedule == "lambda":
        return lr_scheduler.LambdaLR(optimizer, lambda turn: 1 / (1 + 0.2 * turn))
    if script.schedule == "onecycle":
        most = [1.5 * group["lr"] for group in optimizer.param_groups]
        cycled = "momentum" in optimizer.defaults or "betas" in optimizer.defaults
        return lr_scheduler.OneCycleLR(
            optimizer, most, total_steps=script.turns + 1, cycle_momentum=cycled
        )
    if script.schedule in ("plateau", "own figure"):
        return lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, threshold=0.05)
    return None


# -- the loop --------------------------------------------------------------------------------


@dataclass
class Training:
    """One execution of a script, in one world."""

    script: Script
    model: Net
    optimizer: torch.optim.Optimizer
    world: World
    scheduler: Any
    outcome: Outcome = field(default_factory=Outcome)

    def run(self) -> Outcome:
        script, model, last = self.script, self.model, torch.zeros(())
        self._scaler = (
            torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
            if script.scaled
            else None
        )
        self._make_average()
        for epoch in self.world.epochs(script.epochs):
            if script.branch == "odd":
                model.with_branch = epoch % 2 == 1
            if epoch == script.frozen_again and model.branch is not None:
                self._freeze(model.branch)
            for number, batch in enumerate(self.world.batches()):
                last = self._batch(epoch, number, batch)
            self._after_epoch(last)
        self._end()
        return self.outcome

    def _batch(self, epoch: int, number: int, batch: Any) -> Tensor:
        script, at = self.script, (epoch, number)
        x, y = (batch["x"], batch["y"]) if isinstance(batch, dict) else batch
        if at == script.late:
            self._release()
        if script.zero in ("top", "model") and number % script.accumulate == 0:
            self._zero()
        for part in range(script.losses):
            loss = self._loss(x, y, part)
            whole = loss / script.accumulate if script.divided else loss
            self.world.backward(whole if self._scaler is None else self._scaler.scale(whole))
        self.outcome.rates[at] = self._rates()
        steps = script.steps_at(number)
        if steps or script.clip_each:
            self._clip(at)
        if steps:
            self.world.step(0.5 if script.clip == "step" else None, self._scaler)
            if self._scaler is not None:
                self._scaler.update()
            if script.zero == "bottom":
                self._zero()
            self._update_average()
        if script.schedule in ("onecycle", "lambda") and (steps or script.per == "batch"):
            self.scheduler.step()
        if at in script.saves and (script.saver == "all" or self.world.is_first):
            self.outcome.saved[at] = self._saved()
        return loss.detach()

    def _loss(self, x: Tensor, y: Tensor, part: int) -> Tensor:
        outputs = self.model(x)
        each = (
            F.cross_entropy(outputs, y, reduction="none")
            if part == 0
            else 0.3 * outputs.pow(2).mean(dim=1)
        )
        if self.script.loss == "mean by hand":
            loss = each.sum() / len(y)
        elif self.script.loss == "sum by hand":
            loss = each.sum()
        elif part == 0:
            loss = F.cross_entropy(outputs, y, reduction=self.script.loss)
        else:
            loss = each.mean() if self.script.loss == "mean" else each.sum()
        if self.script.penalty:
            loss = loss + 0.01 * sum(
                p.pow(2).sum() for p in self.model.parameters() if p.requires_grad
            )
        return loss

    def _release(self) -> None:
        branch, rate = self.model.branch, 0.7 * self.optimizer.param_groups[0]["lr"]
        if self.script.branch in ("unfrozen", "added") and branch is not None:
            branch.requires_grad_(True)
        if self.script.branch == "added" and branch is not None:
            self.optimizer.add_param_group({"params": list(branch.parameters()), "lr": rate})

    def _freeze(self, block: nn.Module) -> None:
        block.requires_grad_(False)
        for parameter in block.parameters():
            parameter.grad = None

    def _zero(self) -> None:
        source: Any = self.model if self.script.zero == "model" else self.optimizer
        source.zero_grad(set_to_none=self.script.to_none)

    def _clip(self, at: At) -> None:
        kind = self.script.clip
        if kind in ("none", "step"):
            return
        if self._scaler is not None:
            self._scaler.unscale_(self.optimizer)
        if kind == "norm":
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.4)
            self.outcome.norms[at] = float(norm)
            return
        if kind == "value":
            nn.utils.clip_grad_value_(self.model.parameters(), 0.05)
            return
        trained = [p for p in self.model.parameters() if p.grad is not None]
        whole = math.sqrt(sum(float(p.grad.pow(2).sum()) for p in trained))  # type: ignore[union-attr]
        self.outcome.norms[at] = whole
        factor = min(1.0, 0.4 / (whole + 1e-6))
        for parameter in trained if kind != "look" else ():
            assert parameter.grad is not None
            if kind == "own":
                parameter.grad.mul_(factor)
            else:
                parameter.grad = parameter.grad * factor

    def _after_epoch(self, last: Tensor) -> None:
        if self.script.schedule in ("step", "cosine"):
            self.scheduler.step()
        elif self.script.schedule == "plateau":
            self.scheduler.step(self.world.evaluate(F.cross_entropy))
        elif self.script.schedule == "own figure":
            self.scheduler.step(float(last))

    def _rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    # -- averages and files ------------------------------------------------------------------

    def _make_average(self) -> None:
        self._averaged: nn.Module | None = None
        if self.script.average == "averaged":
            follow = get_ema_multi_avg_fn(0.8)
            self._averaged = AveragedModel(self.model, multi_avg_fn=follow)
        elif self.script.average == "lerp":
            self._averaged = copy.deepcopy(self.model).requires_grad_(False)

    @torch.no_grad()
    def _update_average(self) -> None:
        if isinstance(self._averaged, AveragedModel):
            self._averaged.update_parameters(self.model)
        elif self._averaged is not None:
            pairs = zip(self._averaged.parameters(), self.model.parameters(), strict=True)
            for mean, parameter in pairs:
                mean.lerp_(parameter, 0.2)

    def _saved(self) -> dict[str, Any]:
        """As it is read back from a file."""
        file = io.BytesIO()
        states = {
            "model": self.model.state_dict(),
            "part": self.model.body.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(states, file)
        file.seek(0)
        return torch.load(file)  # type: ignore[no-any-return]

    def _end(self) -> None:
        outcome = self.outcome
        outcome.weights = {k: v.clone() for k, v in self.model.state_dict().items()}
        outcome.optimizer = copy.deepcopy(self.optimizer.state_dict())
        outcome.last_rates = self._rates()
        if self._averaged is not None:
            outcome.average = copy.deepcopy(dict(self._averaged.state_dict()))


# -- the two worlds --------------------------------------------------------------------------


@dataclass
class Plain:
    """Torch alone."""

    script: Script
    model: Net
    optimizer: torch.optim.Optimizer
    is_first = True
    _passes = 0

    def epochs(self, count: int) -> Iterable[int]:
        return range(count)

    def batches(self) -> Iterator[Any]:
        x, y = data_of(self.script)
        numbers = order(len(x), SEED, self._passes)
        self._passes += 1
        for part in numbers.split(self.script.batch):
            named = self.script.data.startswith("dict")
            yield {"x": x[part], "y": y[part]} if named else (x[part], y[part])

    def backward(self, loss: Tensor) -> None:
        loss.backward()

    def step(self, clip: float | None, scaler: Any) -> None:
        """``run.step`` clips, and drops the gradients too."""
        if clip is not None:
            if scaler is not None:
                scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(
                [p for g in self.optimizer.param_groups for p in g["params"]], clip
            )
        if scaler is None:
            self.optimizer.step()
        else:
            scaler.step(self.optimizer)
        self.optimizer.zero_grad()

    @torch.no_grad()
    def evaluate(self, metric: Callable[[Tensor, Tensor], Tensor]) -> float:
        x, y = data_of(self.script)
        self.model.eval()
        figure = float(metric(self.model(x), y))
        self.model.train()
        return figure


@dataclass
class Joined:
    """A worker of a run."""

    script: Script
    run: Run

    def __post_init__(self) -> None:
        self.is_first, self._pairs = self.run.is_first, data_of(self.script)
        x, y = self._pairs
        script = self.script
        chosen: Any = self._pairs if script.data == "tuple" else Records(x, y)
        if script.data == "loader":
            chosen = DataLoader(TensorDataset(x, y), script.batch, shuffle=True)
        elif script.data == "dicts of a loader":
            chosen = DataLoader(chosen, script.batch, shuffle=True)
        self._data = chosen

    def epochs(self, count: int) -> Iterable[int]:
        return self.run.epochs(count)

    def batches(self) -> Iterator[Any]:
        loaded = isinstance(self._data, DataLoader)
        return self.run.batches(self._data, batch=None if loaded else self.script.batch)

    def backward(self, loss: Tensor) -> None:
        if self.script.backward == "run":
            self.run.backward(loss)
        else:
            loss.backward()

    def step(self, clip: float | None, scaler: Any) -> None:
        if scaler is None:
            self.run.step(clip=clip)
        else:
            self.run.step(clip=clip, scaler=scaler)  # type: ignore[call-arg,unused-ignore]

    def evaluate(self, metric: Callable[[Tensor, Tensor], Tensor]) -> float:
        return self.run.evaluate(metric, self._pairs)


def train_plain(script: Script) -> Outcome:
    model = model_of(script)
    optimizer = optimizer_of(script, model)
    world = Plain(script, model, optimizer)
    return Training(script, model, optimizer, world, scheduler_of(script, optimizer)).run()


def train_joined(script: Script) -> Outcome:
    """As one worker of the run that the caller was started for."""
    model = model_of(script)
    optimizer = optimizer_of(script, model)
    scheduler = scheduler_of(script, optimizer) if script.scheduler_first else None
    declared: dict[str, Any] = {"loss": "sum"} if script.sums and script.declared else {}
    run = phalanx.join(model, optimizer, **declared)
    scheduler = scheduler or scheduler_of(script, optimizer)
    return Training(script, model, optimizer, Joined(script, run), scheduler).run()


def train_workers(
    script: Script, workers: int, folder: Path, strategy: str = "allreduce", **settings: Any
) -> list[Outcome]:
    chosen = RunSettings(strategy=strategy, seed=SEED, **settings)
    return as_ranks(workers, folder, lambda rank: train_joined(script), chosen)


# -- comparing -------------------------------------------------------------------------------


def assert_near(found: Tensor, wanted: Tensor, what: str, tolerance: float = 1e-10) -> None:
    assert found.shape == wanted.shape, what
    gap = float((found.double() - wanted.double()).abs().max()) if found.numel() else 0.0
    scale = max(1.0, float(wanted.double().abs().max())) if found.numel() else 1.0
    assert gap <= tolerance * scale, f"{what}: {gap:.1e} apart"


def assert_same_state(found: dict[str, Tensor], wanted: dict[str, Tensor], what: str) -> None:
    assert list(found) == list(wanted), what
    for name, value in wanted.items():
        assert_near(found[name], value, f"{what}, {name}")


def assert_same_optimizer(found: dict[str, Any], wanted: dict[str, Any], what: str) -> None:
    """Options of all groups, and the state of each parameter; a slot of ``None`` is none."""
    assert _options(found) == _options(wanted), f"{what}, groups"
    one, other = _slots(found), _slots(wanted)
    assert one.keys() == other.keys(), f"{what}: {one.keys() ^ other.keys()}"
    for name, value in other.items():
        assert_near(one[name], value, f"{what}, {name}")


def _options(state: dict[str, Any]) -> list[dict[str, Any]]:
    groups = []
    for group in state["param_groups"]:
        rounded = {k: round(v, 12) for k, v in group.items() if isinstance(v, float)}
        if "betas" in group:  # as a scheduler leaves them
            rounded["betas"] = tuple(round(float(beta), 12) for beta in group["betas"])
        groups.append({**group, **rounded})
    return groups


def _slots(state: dict[str, Any]) -> dict[tuple[int, str], Tensor]:
    slots = {}
    for number, entries in state["state"].items():
        for name, value in entries.items():
            if value is not None:
                slots[number, name] = torch.as_tensor(value)
    return slots


def assert_small(state: dict[str, Tensor]) -> None:
    """Nothing but its own numbers is in the file."""
    for name, value in state.items():
        own = value.numel() * value.element_size()
        assert value.untyped_storage().nbytes() == own, f"{name} is saved with others"


def assert_as_plain(found: Outcome, wanted: Outcome, script: Script) -> None:
    """Of one worker. One that had no part in a last batch has not seen that batch."""
    assert_same_state(found.weights, wanted.weights, "weights")
    assert found.last_rates == _near(wanted.last_rates)
    assert_same_optimizer(found.optimizer, wanted.optimizer, "optimizer")
    missed = wanted.rates.keys() - found.rates.keys()
    assert all(number == script.length - 1 for _, number in missed)
    assert found.rates.keys() <= wanted.rates.keys()
    for at, rates in found.rates.items():
        assert rates == _near(wanted.rates[at]), f"rates at {at}"
    for at, norm in found.norms.items():
        assert norm == _near(wanted.norms[at]), f"norm at {at}"
    for at, saved in found.saved.items():
        assert_same_state(saved["model"], wanted.saved[at]["model"], f"saved at {at}")
        assert_same_state(saved["part"], wanted.saved[at]["part"], f"saved at {at}")
        assert_small(saved["part"])
        assert_same_optimizer(
            saved["optimizer"], wanted.saved[at]["optimizer"], f"optimizer saved at {at}"
        )
    if not missed:
        assert_same_state(found.average, wanted.average, "average")


def _near(value: Any) -> Any:
    return pytest.approx(value, rel=1e-10, abs=1e-12)
