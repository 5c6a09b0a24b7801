"""The user's optimizer on shards of a flat buffer, and steps that import no compiler."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from commands import python
from torch import Tensor

from phalanx.sync.state.keras_rules import KERAS_RULES
from phalanx.sync.state.layout import Layout, by_dtype, make_layout, trainable
from phalanx.sync.state.shard_optimizer import ShardOptimizer, discover_slots

Kind = type[torch.optim.Optimizer]
SHAPES = [(5, 7), (11,), (3, 3, 2), (1,)]
SHARDS, STEPS = 3, 6
OPTIMIZERS: list[tuple[Kind, dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.3, "weight_decay": 0.01}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
    (torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    (torch.optim.Adagrad, {"lr": 0.1, "initial_accumulator_value": 0.2, "lr_decay": 0.1}),
    *((kind, {"lr": 0.01, "weight_decay": 0.1}) for kind in KERAS_RULES),
]


def _name(case: object) -> str:
    return case.__name__ if isinstance(case, type) else "-".join(case)  # type: ignore[call-overload,no-any-return]


class _Sharded:
    """Parameters in one flat buffer, and a ShardOptimizer for each shard of it."""

    def __init__(self, parameters: list[Tensor], kind: Kind, options: dict[str, Any]) -> None:
        source = kind(parameters, **options)  # type: ignore[call-arg]
        (members,) = by_dtype(trainable(source)).values()
        self.layout: Layout = make_layout(members, SHARDS)
        self.flat = torch.cat([p.detach().reshape(-1) for p in parameters])
        names = discover_slots(source)
        slots = {name: torch.zeros_like(self.flat) for name in names.flat}
        self.shards = [
            ShardOptimizer(
                source, self.layout, shard, self.flat, slots,
                torch.zeros(len(pieces)), names.scalar,
            )
            for shard, pieces in enumerate(self.layout.shards)
        ]  # fmt: skip
        self._gradients = [torch.empty(0) for _ in self.shards]
        for shard in range(SHARDS):
            low, high = self.layout.bounds(shard)
            self._gradients[shard] = torch.zeros(high - low, dtype=self.flat.dtype)

    def step(self, gradients: list[Tensor | None]) -> None:
        used = bytes(g is not None for g in gradients)
        places = self.layout.places
        whole = torch.zeros_like(self.flat)
        for place, gradient in zip(places, gradients, strict=True):
            if gradient is not None:
                place.view(whole).copy_(gradient)
        for shard, optimizer in enumerate(self.shards):
            low, high = self.layout.bounds(shard)
            self._gradients[shard].copy_(whole[low:high])
            optimizer.update(self._gradients[shard], None if all(used) else used)

    def parameters(self) -> list[Tensor]:
        return [place.view(self.flat) for place in self.layout.places]


def _pair(
    kind: Kind, options: dict[str, Any]
) -> tuple[list[Tensor], torch.optim.Optimizer, _Sharded]:
    torch.manual_seed(0)
    parameters = [torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in SHAPES]
    sharded = _Sharded([p.detach().clone().requires_grad_() for p in parameters], kind, options)
    return parameters, kind(parameters, **options), sharded  # type: ignore[call-arg]


def _step(
    parameters: list[Tensor], whole: torch.optim.Optimizer, sharded: _Sharded, skip: set[int]
) -> None:
    gradients = [
        None if i in skip else torch.randn(shape, dtype=torch.float64)
        for i, shape in enumerate(SHAPES)
    ]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    whole.step()
    sharded.step(gradients)


def _assert_same(parameters: list[Tensor], sharded: _Sharded) -> None:
    for mine, theirs in zip(sharded.parameters(), parameters, strict=True):
        torch.testing.assert_close(mine, theirs.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS, ids=_name)
def test_parameters_that_are_skipped_keep_their_own_counts(
    kind: Kind, options: dict[str, Any]
) -> None:
    parameters, whole, sharded = _pair(kind, options)
    for skip in ({1}, set(), {0, 3}, {0, 1, 2, 3}, set(), {1}, set(), set()):
        _step(parameters, whole, sharded, skip)
        _assert_same(parameters, sharded)


@pytest.mark.parametrize(("kind", "options"), OPTIMIZERS, ids=_name)
@pytest.mark.parametrize("skipped_at", [0, 2], ids=["first-step", "later"])
def test_one_skipped_parameter_does_not_rebuild_the_optimizer_for_ever(
    kind: Kind, options: dict[str, Any], skipped_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parameters, whole, sharded = _pair(kind, options)
    built: list[int] = []
    build = ShardOptimizer._build

    def counting(self: ShardOptimizer, gradient: Tensor) -> torch.optim.Optimizer:
        built.append(1)
        return build(self, gradient)

    monkeypatch.setattr(ShardOptimizer, "_build", counting)
    for number in range(skipped_at + 3):
        _step(parameters, whole, sharded, {1} if number == skipped_at else set())
    assert built, "the optimizers are built here"
    built.clear()
    for _ in range(STEPS):
        _step(parameters, whole, sharded, set())
    assert not built
    _assert_same(parameters, sharded)


SCRIPT = """
import sys, torch
from phalanx.sync.state.skip_dynamo_import import COMPILER, StepWithoutCompiler, without_compiler
without_compiler()
weights = torch.ones(2, requires_grad=True)
optimizer = torch.optim.Adam([weights], lr=0.5)

def step(closure=None):
    weights.sum().backward()
    with StepWithoutCompiler(optimizer):
        optimizer.step(closure)
    optimizer.zero_grad(set_to_none=True)
    assert weights.grad is None

def compiles():
    from torch.compiler import is_compiling
    return float(torch._dynamo.config.verbose or is_compiling())

step()
print("step", COMPILER in sys.modules, float(weights[0]) < 1.0)
before = weights.detach().clone()
step(compiles)
print("closure", sys.modules[COMPILER].__file__ is not None)
from torch._dynamo.utils import counters
step()
optimizer.add_param_group({"params": [torch.ones(1, requires_grad=True)]})
print("after", bool((weights < before).all()), type(counters).__name__, len(optimizer.param_groups))
marked = getattr(torch.optim.Optimizer.zero_grad.__wrapped__, "__dynamo_disable")
print("marked", hasattr(marked, "_torchdynamo_disable"))
"""


def test_a_step_imports_no_compiler_and_does_not_hide_it() -> None:
    ended = python("-c", SCRIPT)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == [
        "step False True", "closure True", "after True defaultdict 2", "marked True",
    ]  # fmt: skip
