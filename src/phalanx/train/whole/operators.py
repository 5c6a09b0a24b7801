"""Autograd's functions for values that enter and leave a shared call of a model.

A value is either *common* (every worker has all of it, and computes the same with it) or *partial*
(of this worker's rows). A shared call is entered by common values and left by common values; inside
they are partial. So the gradient of what enters is the sum, or the concatenation, of what all
workers found; the gradient of what leaves is common already, and each worker takes its rows of it.
These are the conjugate operators of Shoeybi et al., "Megatron-LM" (2019), for rows of a batch. Each
one's derivative is written with the others, so that gradients of gradients are right as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from phalanx.sync.reduce.worker_collective import WorkerCollective, meaning_of


@dataclass(frozen=True)
class Rows:
    """The rows of a batch that each worker computes."""

    collective: WorkerCollective
    sizes: tuple[int, ...]

    @property
    def mine(self) -> int:
        return self.sizes[self.collective.rank]

    @property
    def start(self) -> int:
        return sum(self.sizes[: self.collective.rank])

    @property
    def total(self) -> int:
        return sum(self.sizes)

    @property
    def weight(self) -> float:
        return self.mine / self.total

    def own(self, whole: Tensor, dim: int) -> Tensor:
        """Return this worker's rows; each may have become several (sequences, then tokens)."""
        each = whole.shape[dim] // self.total
        return whole.narrow(dim, each * self.start, each * self.mine)

    def gathered(self, part: Tensor, dim: int) -> Tensor:
        each = part.shape[dim] // self.mine
        moved = part.movedim(dim, 0)
        home = self.collective.gather(moved.cpu(), [each * size for size in self.sizes])
        found = home.to(part.device).movedim(0, dim)
        return found.contiguous() if part.is_contiguous() else found


class Operator(Function):
    """A typed ``torch.autograd.Function``."""

    @classmethod
    def of(cls, *given: Any) -> Any:
        return cls.apply(*given)  # type: ignore[no-untyped-call]


class _Enter(Operator):
    """Uses common values for partial results: the identity, whose gradient is the sum."""

    @staticmethod
    def forward(ctx: Any, rows: Rows, *common: Tensor) -> tuple[Tensor, ...]:
        ctx.rows, ctx.like = rows, common
        ctx.set_materialize_grads(False)
        return tuple(value.detach() for value in common)

    @staticmethod
    def backward(ctx: Any, *partial: Tensor | None) -> tuple[Any, ...]:
        return (None, *summed(ctx.rows, partial, ctx.like))


class _Sum(Operator):
    """Sums partial values into a common one; ``None`` if no worker has one."""

    @staticmethod
    def forward(
        ctx: Any, rows: Rows, like: Sequence[Tensor], *partial: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        ctx.rows = rows
        ctx.set_materialize_grads(False)
        return tuple(_add_up(rows.collective, like, partial))

    @staticmethod
    def backward(ctx: Any, *common: Tensor | None) -> tuple[Any, ...]:
        there = [value for value in common if value is not None]
        entered = iter(_Enter.of(ctx.rows, *there) if there else ())
        return (None, None, *(None if value is None else next(entered) for value in common))


class _Gather(Operator):
    """Gathers partial rows into the whole, which is common."""

    @staticmethod
    def forward(ctx: Any, rows: Rows, dim: int, part: Tensor) -> Tensor:
        ctx.rows, ctx.dim = rows, dim
        return rows.gathered(part, dim)

    @staticmethod
    def backward(ctx: Any, whole: Tensor) -> tuple[Any, ...]:
        return None, None, _Own.of(ctx.rows, ctx.dim, whole)


class _Own(Operator):
    """Takes this worker's rows of something common."""

    @staticmethod
    def forward(ctx: Any, rows: Rows, dim: int, whole: Tensor) -> Tensor:
        ctx.rows, ctx.dim = rows, dim
        return rows.own(whole, dim).clone()

    @staticmethod
    def backward(ctx: Any, part: Tensor) -> tuple[Any, ...]:
        return None, None, _Gather.of(ctx.rows, ctx.dim, part)


def entered(rows: Rows, common: Sequence[Tensor]) -> tuple[Tensor, ...]:
    found: tuple[Tensor, ...] = _Enter.of(rows, *common) if common else ()
    return found


def summed(
    rows: Rows, partial: Sequence[Tensor | None], like: Sequence[Tensor]
) -> tuple[Tensor | None, ...]:
    found: tuple[Tensor | None, ...] = _Sum.of(rows, like, *partial)
    return found


def gathered(rows: Rows, dim: int, part: Tensor) -> Tensor:
    found: Tensor = _Gather.of(rows, dim, part)
    return found


def own(rows: Rows, dim: int, whole: Tensor) -> Tensor:
    if whole.requires_grad and torch.is_grad_enabled():
        found: Tensor = _Own.of(rows, dim, whole)
        return found
    return rows.own(whole, dim)


def reaches_outside(values: Sequence[Any], known: dict[int, Tensor] | None) -> dict[int, Tensor]:
    """Return the ``known`` tensors (``None``: all) on which results depend though they did not
    enter the call: their gradients would be this worker's alone. A checkpoint that recomputes hides
    its inputs, so it counts as well."""
    found: dict[int, Tensor] = {}
    tensors = [v for v in values if isinstance(v, Tensor) and v.requires_grad]
    found.update((id(v), v) for v in tensors if v.grad_fn is None)
    stack, seen = [v.grad_fn for v in tensors], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen or node.name() in ("_EnterBackward", "_OwnBackward"):
            continue
        seen.add(node)
        if node.name() == "CheckpointFunctionBackward":
            found[0] = tensors[0]
        elif (leaf := getattr(node, "variable", None)) is not None:
            found[id(leaf)] = leaf
        stack.extend(following for following, _ in node.next_functions)
    return {i: leaf for i, leaf in found.items() if known is None or i in known or not i}


def averaged(rows: Rows, part: Tensor) -> Tensor:
    """Return the mean over all rows, from each worker's mean over its own rows."""
    (found,) = summed(rows, [part * rows.weight], [part])
    assert found is not None
    return found


_GRADIENTS = meaning_of("gradients")


@torch.no_grad()
def _add_up(
    collective: WorkerCollective, like: Sequence[Tensor], partial: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Sum values in one flat tensor per dtype, with a mark for each value that is not ``None``."""
    found: list[Tensor | None] = [None] * len(like)
    kinds: dict[torch.dtype, list[int]] = {}
    for index, value in enumerate(like):
        kinds.setdefault(value.dtype, []).append(index)
    for dtype, indices in kinds.items():
        sizes = [*(like[i].numel() for i in indices), len(indices)]

        def write(row: Tensor, indices: list[int] = indices, sizes: list[int] = sizes) -> None:
            *places, marks = row.split(sizes)
            marks.copy_(torch.tensor([partial[i] is not None for i in indices]))
            for index, place in zip(indices, places, strict=True):
                if (given := partial[index]) is None:
                    place.zero_()
                else:
                    place.view(given.shape).copy_(given)

        total = collective.sum_written(dtype, sum(sizes), write, _GRADIENTS)
        *places, marks = total.split(sizes)
        for index, place, there in zip(indices, places, marks.tolist(), strict=True):
            if there:
                found[index] = place.view(like[index].shape).to(like[index].device)
    return found
