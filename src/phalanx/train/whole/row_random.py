"""Random numbers of a shared call that are those of a whole one: for comparing the two.

Each worker draws for the whole batch, as one process does, and keeps what belongs to its rows. That
costs as much as drawing alone, so it is done only in the calls that are compared.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from phalanx.sync.state.skip_dynamo_import import skip_compiler

_RANDOM = torch.Tag.nondeterministic_seeded


class RowRandom(TorchDispatchMode):
    """``mine`` rows from ``start`` of ``total`` are this worker's."""

    def __init__(self, mine: int, start: int, total: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mine, self._start, self._total = mine, start, total
        self.common = False
        """Whether something was drawn for all rows at once, by all workers alike."""

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
        """Where ``given`` has this worker's rows."""
        shape = given.shape if isinstance(given, Tensor) else given
        if not isinstance(shape, list | tuple | torch.Size):
            return None
        return next((d for d, n in enumerate(shape) if n == self._mine), None)

    def _wider(self, given: Any, dim: int) -> Any:
        """An argument with the size of a whole call; the values of other rows do not matter."""
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
