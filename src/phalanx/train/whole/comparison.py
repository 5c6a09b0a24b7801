"""Finds whether a call of a module can be shared out, by computing it whole and in parts.

The module's state is restored afterwards. Parameters that are all zero are replaced by others for
this, because zeros hide differences that appear after a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.core.errors import InputError
from phalanx.train.whole.module_state import ModuleState, Slot, swapped
from phalanx.train.whole.operators import Rows, entered, own, reaches_outside
from phalanx.train.whole.row_plan import COMMON, NOT_ROWS, Leaves, RowPlan, RowRandom, output_kind


class CallState:
    """The state of this worker's current call."""

    def __init__(self) -> None:
        self.plain = nn.Module.__call__
        self.inside = False
        self.rows: Rows | None = None
        """The rows of the current shared call."""
        self.exchanges = self.hooked = False
        """Whether its parts exchange values, and whether its gradients have hooks."""
        self.dry = False
        """Whether this worker computes a part alone, as a trial."""

    @contextmanager
    def within(self, rows: Rows | None) -> Iterator[None]:
        """Within this context, modules' calls belong to the current call, of ``rows`` or of all."""
        before = self.inside, self.rows
        self.inside, self.rows = True, rows
        try:
            yield
        finally:
            self.inside, self.rows = before


class Comparison:
    """Compares calls. Collective: all workers make the same comparisons in the same order."""

    def __init__(self, calls: CallState, module: nn.Module, leaves: Leaves, rows: Rows) -> None:
        self._calls, self._module, self._leaves, self._rows = calls, module, leaves, rows
        self.draws_alike = False
        """Whether the call draws random numbers that do not belong to single rows."""

    def plan(self, plan: RowPlan, slots: Sequence[Slot]) -> RowPlan | None:
        """Return ``plan`` with its outputs' kinds, if a call in parts gives the same as a whole."""
        state = ModuleState(self._module)
        parameters = {id(where[name]): _not_zero(where[name]) for where, name in slots}
        try:
            try:
                given = _copies(self._leaves.values)
                self._calls.exchanges = self._calls.hooked = False
                with swapped(slots, parameters):
                    whole = self._once(given, None)
            except InputError:
                raise
            except Exception:  # the script meets the error when it computes the call by itself
                return None
            after, kept = state.now(), all(map(_equal, given, self._leaves.values))
            outside = reaches_outside(whole.values, None)
            outside.update((id(where[name]), where[name]) for where, name in slots)
            if self._calls.exchanges and not self._all(self._part(plan, slots, alone=True)):
                return None  # or some workers would wait for others that failed
            state.put_back()
            part = self._part(plan, slots)
            fits = part is not None and kept and state.same_as(after) and not self._calls.hooked
            fits = fits and part is not None and not reaches_outside(part.values, outside)
            kinds = self._outputs(whole, part)
            return self._agreed(plan, kinds if fits else None)
        finally:
            state.put_back()

    def _all(self, part: Leaves | None) -> bool:
        """Return whether all workers could compute their parts. Collective."""
        there = self._rows.collective.sum(torch.tensor([float(part is not None)]))
        return int(there) == len(self._rows.sizes)

    def _part(self, plan: RowPlan, slots: Sequence[Slot], *, alone: bool = False) -> Leaves | None:
        state = ModuleState(self._module) if alone else None
        self._calls.dry = alone
        try:
            values, inner = entered_values(
                self._rows, _copies(self._leaves.values), plan, slots, changed=_not_zero
            )
            with swapped(slots, inner):
                return self._once(values, None if alone else self._rows)
        except (InputError, KeyboardInterrupt):
            raise
        except Exception:  # for example, the model needs a constant batch size
            return None
        finally:
            self._calls.dry = False
            if state is not None:
                state.put_back()

    def _once(self, values: Sequence[Any], rows: Rows | None) -> Leaves:
        args, kwargs = self._leaves.with_values(values)
        drawn = nullcontext() if rows is None else RowRandom(rows.mine, rows.start, rows.total)
        with self._calls.within(rows), drawn:
            found = Leaves.of(self._calls.plain(self._module, *args, **kwargs))
        if isinstance(drawn, RowRandom):
            self.draws_alike = drawn.common
        return found

    def _outputs(self, whole: Leaves, part: Leaves | None) -> list[int] | None:
        alike = part is not None and whole.alike(part)
        if not self._all(part if alike else None) or part is None:
            return None
        rows = self._rows
        kinds: list[int] = []
        for one, other in zip(
            map(_detached, whole.values), map(_detached, part.values), strict=True
        ):
            mean = None
            if isinstance(other, Tensor) and other.dim() == 0 and other.is_floating_point():
                mean = rows.collective.sum(other.reshape(1).cpu() * rows.weight)[0]
                mean = mean.to(other.device)
            same = one if part.values[len(kinds)] is whole.values[len(kinds)] else other
            kinds.append(output_kind(one, same, mean, rows.start, rows.total))
        return kinds

    def _agreed(self, plan: RowPlan, kinds: Sequence[int] | None) -> RowPlan | None:
        """Return a plan that all workers agree on: an output may look common to just one."""
        collective = self._rows.collective
        told = collective.sum(torch.tensor([float(kinds is None)]))
        if float(told) or kinds is None:
            return None
        mine = torch.tensor([kinds], dtype=torch.int64).view(1, -1)
        found = collective.gather(mine, [1] * collective.workers)
        best = tuple(int(column.max()) for column in found.unbind(1))
        for column, chosen in zip(found.unbind(1), best, strict=True):
            if NOT_ROWS in column or any(int(k) not in (chosen, COMMON) for k in column):
                return None
        return RowPlan(plan.inputs, best)


def entered_values(
    rows: Rows, values: list[Any], plan: RowPlan, slots: Sequence[Slot], *, changed: Any = None
) -> tuple[list[Any], dict[int, Tensor]]:
    """Return this worker's arguments, and the values that replace the modules' parameters."""
    grads = torch.is_grad_enabled()
    common = {id(where[name]): where[name] for where, name in slots}
    if changed is not None:
        common = {i: changed(value) for i, value in common.items()}
    needed = [i for i, dim in enumerate(plan.inputs) if dim is None and _wants(values[i])]
    needed = needed if grads else []
    if grads:
        came_in = entered(rows, [*common.values(), *(values[i] for i in needed)])
        for index, value in zip(needed, came_in[len(common) :], strict=True):
            values[index] = value
        common = dict(zip(common, came_in, strict=False))
    for index, dim in enumerate(plan.inputs):
        if dim is not None:
            values[index] = own(rows, dim, values[index])
    return values, common


def _not_zero(parameter: Tensor) -> Tensor:
    if not parameter.numel() or bool(parameter.detach().any()):
        return parameter
    numbers = torch.arange(parameter.numel(), device=parameter.device).cos() * 0.1
    return numbers.to(parameter.dtype).view(parameter.shape).requires_grad_(parameter.requires_grad)


def _wants(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _detached(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _copies(values: Sequence[Any]) -> list[Any]:
    """Copy values, because a model may write into what it is given."""
    return [
        v.detach().requires_grad_(_wants(v) and torch.is_grad_enabled()).clone()
        if isinstance(v, Tensor)
        else v
        for v in values
    ]


def _equal(value: Any, before: Any) -> bool:
    """Whether a model has left alone what it was given."""
    return not isinstance(value, Tensor) or torch.equal(value.detach(), before.detach())
