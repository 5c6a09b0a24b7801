"""Finds which parts of a model's arguments and outputs are rows of a batch, in which dimension.

For a comparison each worker draws random numbers for the whole batch, as one process does, and
keeps what belongs to its rows. That costs as much as drawing alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from phalanx.sync.state.skip_dynamo_import import skip_compiler

COMMON, MEAN, NOT_ROWS = -1, -2, -3
"""Kinds of outputs without a dimension of rows: the same for all, a mean over rows, neither."""
_PLAIN = int | float | str | bytes | None
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclass(frozen=True)
class Leaves:
    """The tensors and other values in a structure of containers and data classes."""

    values: list[Any]
    spec: TreeSpec
    classes: tuple[Any, ...]
    """The classes of its outermost data classes, by place."""

    @staticmethod
    def of(given: Any) -> Leaves:
        classes: list[Any] = []
        values, spec = tree_flatten(_opened(given, classes))
        return Leaves(values, spec, tuple(classes))

    def alike(self, other: Leaves) -> bool:
        return self.spec == other.spec and self.classes == other.classes

    def with_values(self, values: Sequence[Any]) -> Any:
        return _closed(tree_unflatten(list(values), self.spec), iter(self.classes))

    @property
    def shapes(self) -> tuple[Any, ...]:
        """Return what tells one way of calling a model from another, whatever the batch size."""
        first = next((v.shape for v in self.values if isinstance(v, Tensor) and v.dim()), ())
        rows = first[:2]
        return tuple(
            (v.dim(), v.dtype, v.requires_grad, *[n == r for n in v.shape[:2] for r in rows])
            if isinstance(v, Tensor)
            else (v if isinstance(v, str | bool | None) else type(v))
            for v in self.values
        )


def _opened(given: Any, classes: list[Any]) -> Any:
    """Turn data classes that torch's trees do not know into dictionaries."""
    if is_dataclass(given) and not isinstance(given, type):
        if type(given) in torch.utils._pytree.SUPPORTED_NODES:
            return given
        classes.append(type(given))
        return {"": _MARK} | {f.name: getattr(given, f.name, None) for f in fields(given)}
    if type(given) in (tuple, list):
        return type(given)(_opened(item, classes) for item in given)
    if type(given) is dict:
        return {key: _opened(item, classes) for key, item in given.items()}
    return given


_MARK = "a data class"


def _closed(given: Any, classes: Iterator[Any]) -> Any:
    if type(given) in (tuple, list):
        return type(given)(_closed(item, classes) for item in given)
    if type(given) is not dict:
        return given
    if given.get("") == _MARK:
        kind = next(classes)
        made = object.__new__(kind)
        for name, item in given.items():
            if name:
                object.__setattr__(made, name, item)
        return made
    return {key: _closed(item, classes) for key, item in given.items()}


@dataclass(frozen=True)
class RowPlan:
    """How the arguments and outputs of one kind of call are shared among the workers."""

    inputs: tuple[int | None, ...]
    """The dimension of rows of each leaf of the arguments; ``None``: all workers need the leaf."""
    outputs: tuple[int, ...] = ()


def rows_of(leaves: Leaves, plan: RowPlan) -> int | None:
    """Return the rows of this call; ``None`` if its tensors do not agree on them."""
    found = {
        value.shape[dim] if value.dim() > dim else -1
        for value, dim in zip(leaves.values, plan.inputs, strict=True)
        if dim is not None
    }
    return found.pop() if len(found) == 1 else None


def candidates(leaves: Leaves) -> Iterator[RowPlan]:
    """Yield which dimensions may be the rows: the first of the first tensor, then its second."""
    tensors = [v for v in leaves.values if isinstance(v, Tensor) and v.dim() > 0]
    if not tensors or any(v.layout != torch.strided or v.is_nested for v in tensors):
        return
    seen: set[RowPlan] = set()
    for dim in range(min(2, tensors[0].dim())):
        rows = tensors[0].shape[dim]
        plan = RowPlan(tuple(_rows_at(v, rows, dim) for v in leaves.values))
        if rows > 1 and plan not in seen:
            seen.add(plan)
            yield plan


def _rows_at(value: Any, rows: int, dim: int) -> int | None:
    if not isinstance(value, Tensor):
        return None
    dims = [dim, *(d for d in range(min(2, value.dim())) if d != dim)]
    return next((d for d in dims if d < value.dim() and value.shape[d] == rows), None)


_RAMP = torch.linspace(1.0, 2.0, 128, dtype=torch.float64)


def signature(leaves: Leaves) -> Tensor:
    """Return two numbers that tell unlike inputs apart: some values added up, and their size."""
    total = scale = 0.0
    for value in [v for v in leaves.values if isinstance(v, Tensor) and v.numel()][:2]:
        if value.layout == torch.strided and not value.is_nested:
            given = value.detach()
            flat = (given if given.is_contiguous() or not given.dim() else given[-1]).reshape(-1)
            some = flat[:: 1 + flat.numel() // 128].abs().to("cpu", torch.float64)
            own = float(some @ _RAMP[: len(some)])
            total, scale = total + own, scale + own
    return torch.tensor([total, scale], dtype=torch.float64)


def rows_in(batch: Any) -> int:
    """Return the samples of a loader's batch: the rows of its first tensor."""
    tensors = (v for v in tree_flatten(batch)[0] if isinstance(v, Tensor) and v.dim() > 0)
    first = next(tensors, None)
    return 0 if first is None else first.shape[0]


def output_kind(whole: Any, part: Any, mean: Tensor | None, start: int, total: int) -> int:
    """Return the kind of an output, from the ``whole``, a ``part`` and the ``mean`` of parts."""
    if not isinstance(whole, Tensor) or not isinstance(part, Tensor):
        same = type(whole) is type(part) and isinstance(whole, _PLAIN) and whole == part
        return COMMON if same or whole is part else NOT_ROWS
    if whole.dtype != part.dtype or whole.dim() != part.dim():
        return NOT_ROWS
    scalar = whole.dim() == 0 and whole.is_floating_point()
    if scalar:  # before COMMON: equal scalars have this mean too, and may differ in later batches
        return MEAN if mean is not None and near(whole, mean) else NOT_ROWS
    if whole.shape == part.shape and near(whole, part):
        return COMMON
    for dim in range(whole.dim()):
        each = whole.shape[dim] // total  # a batch of sequences may have become one of tokens
        if each * total == whole.shape[dim] and whole.shape[dim] != part.shape[dim]:
            own = whole.narrow(dim, each * start, min(part.shape[dim], each * (total - start)))
            if own.shape == part.shape and near(own, part):
                return dim
    return NOT_ROWS


def near(one: Tensor, other: Tensor) -> bool:
    """Whether two results are of the same computation, except for rounding."""
    if one.is_nested or one.layout != torch.strided or other.layout != torch.strided:
        return False
    if not (one.is_floating_point() or one.is_complex()):
        return bool(torch.equal(one, other))
    tolerance = _TOLERANCE.get(one.dtype, 1e-4)
    sizes = one.detach().abs()
    sizes = sizes[sizes.isfinite()]
    scale = float(sizes.max()) if sizes.numel() else 0.0
    return bool(
        torch.allclose(one, other, rtol=tolerance, atol=tolerance * max(scale, 1e-30) / 10,
                       equal_nan=True)
    )  # fmt: skip


_RANDOM = torch.Tag.nondeterministic_seeded


class RowRandom(TorchDispatchMode):
    """Draws for all ``total`` rows; this worker has ``mine`` of them from ``start`` on."""

    def __init__(self, mine: int, start: int, total: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mine, self._start, self._total = mine, start, total
        self.common = False
        """Whether something was drawn for all rows at once, alike on all workers."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if _RANDOM not in func.tags or self._mine == self._total:
            return func(*args, **kwargs)
        dim = next((d for a in args if (d := self._dim(a)) is not None), None)
        self.common = self.common or dim is None or kwargs.get("generator") is not None
        if dim is None:
            return func(*args, **kwargs)
        drawn = func(*[self._wider(a, dim) for a in args], **kwargs)
        if not isinstance(drawn, Tensor):
            return func(*args, **kwargs)
        own = drawn.narrow(dim, self._start, self._mine)
        if func._schema.is_mutable and isinstance(args[0], Tensor):
            return args[0].copy_(own)
        return own.clone()

    def _dim(self, given: Any) -> int | None:
        """Return the dimension in which ``given`` has this worker's rows."""
        shape = given.shape if isinstance(given, Tensor) else given
        if not isinstance(shape, list | tuple | torch.Size):
            return None
        return next((d for d, n in enumerate(shape) if n == self._mine), None)

    def _wider(self, given: Any, dim: int) -> Any:
        """Return ``given`` for all rows; the other workers' rows are 0, as drawing ignores them."""
        if self._dim(given) is None:
            return given
        if not isinstance(given, Tensor):
            return [self._total if d == dim else n for d, n in enumerate(given)]
        shape = list(given.shape)
        shape[dim] = self._total
        whole = given.new_zeros(shape)
        whole.narrow(dim, self._start, self._mine).copy_(given)
        return whole


skip_compiler(RowRandom.__torch_dispatch__)
