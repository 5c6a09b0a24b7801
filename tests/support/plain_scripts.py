"""Small training scripts of every kind, to run in plain torch and joined.

A :class:`Script` is a set of choices as people make them; here is what it trains, and with what.
Its loop is in ``plain_training``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

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


@dataclass(frozen=True, repr=False)
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
    scaled: Literal["no", "run", "plain"] = "no"
    """With a GradScaler: ``run.step(scaler=…)``, or ``scaler.step(optimizer)`` as in torch."""

    def __repr__(self) -> str:
        """What is not as in the shortest loop."""
        chosen = [f for f in fields(self) if getattr(self, f.name) != f.default]
        return f"Script({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in chosen)})"

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


def linear() -> nn.Linear:
    """The smallest model, with the same weights every time."""
    model = nn.Linear(FEATURES, CLASSES).double()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.linspace(-1, 1 + number, parameter.numel()).view_as(parameter))
    return model


MOMENTUM = Script(optimizer="momentum", decay=0.01)
