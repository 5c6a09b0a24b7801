"""``SharedCalls``: calls of models, shared out among the workers by rows.

The outermost call of a module that has parameters is shared out: this worker computes its rows, and
the script gets the outputs of all rows. Whether a call can be shared is found on the first one of
its kind, by computing it both ways; what cannot is computed whole by every worker, which is right,
and not faster. Some later calls are compared again, for what begins late.
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from phalanx.core.errors import InputError
from phalanx.rules.ledger import split_among_all
from phalanx.sync.reduce.worker_collective import WorkerCollective, meaning_of
from phalanx.train.whole import batch_norm
from phalanx.train.whole.module_state import ModuleState, watches_calls
from phalanx.train.whole.operators import Rows, averaged, entered, gathered, own
from phalanx.train.whole.row_plan import (
    COMMON,
    MEAN,
    NOT_ROWS,
    Leaves,
    RowPlan,
    candidates,
    output_kind,
    rows_of,
)
from phalanx.train.whole.row_random import RowRandom

_Slot = tuple[dict[str, Any], str]
_plain_call = nn.Module.__call__
_plain_norm = torch.nn.functional.batch_norm


@dataclass
class _Kind:
    """One way of calling a model: with tensors of these types, in this mode."""

    plan: RowPlan | None
    """``None``: it cannot be shared out."""
    calls: int = 0
    compared: int = 1
    """The call after which it was compared last."""


@dataclass
class _Known:
    """What is known of a module."""

    kinds: dict[Any, _Kind] = field(default_factory=dict)


class SharedCalls:
    def __init__(
        self,
        collective: WorkerCollective,
        shares: Callable[[], Sequence[float]],
        say_once: Callable[[str], None],
    ) -> None:
        self._collective, self._shares, self._say_once = collective, shares, say_once
        self._known: weakref.WeakKeyDictionary[nn.Module, _Known] = weakref.WeakKeyDictionary()
        self._own_stream: Tensor | None = None
        self._as_alone: Rows | None = None
        """Of the newest call, if its random numbers were those of one process."""
        self.as_alone = False
        """Whether the random numbers of calls are those of one process, to be compared."""
        self.inside = False
        self.rows: Rows | None = None
        """Of the shared call under way."""
        self.trained = 0
        """Rows of the largest shared call with gradients since the last step, all workers'."""
        self.computed = 0
        """And how many of them were this worker's."""

    # -- a call ------------------------------------------------------------------------------

    def call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch._C._current_graph_task_id() != -1:
            return self._again(module, args, kwargs)
        parameters = list(module.parameters())
        if not parameters or any(isinstance(p, UninitializedParameter) for p in parameters):
            return _plain_call(module, *args, **kwargs)
        leaves = Leaves.of((args, kwargs))
        kind = self._kind_of(module, leaves)
        plan = kind.plan
        rows = None if plan is None else rows_of(leaves, plan)
        if plan is None or rows is None or rows < self._collective.workers:
            self._note(rows or _most_rows(leaves), None)
            return self._whole(module, args, kwargs)
        kind.calls += 1
        if kind.calls >= 8 * kind.compared:
            kind.compared = kind.calls
            self._compare_again(module, leaves, plan, rows)
        shared = self._rows(rows)
        if torch.is_grad_enabled():
            self._note(rows, shared)
        return self._share(module, leaves, plan, shared, as_alone=self.as_alone)

    def _note(self, rows: int, shared: Rows | None) -> None:
        if torch.is_grad_enabled() and rows > self.trained:
            self.trained, self.computed = rows, rows if shared is None else shared.mine

    def _whole(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        self.inside = True
        try:
            return _plain_call(module, *args, **kwargs)
        finally:
            self.inside = False

    def _rows(self, count: int) -> Rows:
        ends = [0, *split_among_all(count, list(self._shares()))]
        sizes = tuple(b - a for a, b in itertools.pairwise(ends))
        return Rows(self._collective, sizes)

    def _share(
        self, module: nn.Module, leaves: Leaves, plan: RowPlan, rows: Rows, *, as_alone: bool
    ) -> Any:
        values, slots = list(leaves.values), _slots(module) if torch.is_grad_enabled() else []
        common = list({id(where[name]): where[name] for where, name in slots}.values())
        needed = [i for i, dim in enumerate(plan.inputs) if dim is None and _wants(values[i])]
        if not torch.is_grad_enabled():
            needed = []
        came_in = entered(rows, [*common, *(values[i] for i in needed)])
        inner = dict(zip(map(id, common), came_in, strict=False))
        for index, value in zip(needed, came_in[len(common) :], strict=True):
            values[index] = value
        for index, dim in enumerate(plan.inputs):
            if dim is not None:
                values[index] = own(rows, dim, values[index])
        args, kwargs = leaves.with_values(values)
        with _swapped(slots, inner), self._within(rows), self._numbers(rows, as_alone):
            out = Leaves.of(_plain_call(module, *args, **kwargs))
        if len(out.values) != len(plan.outputs):
            raise _changed(module)
        whole = [
            self._leave(rows, value, how)
            for value, how in zip(out.values, plan.outputs, strict=True)
        ]
        return out.with_values(whole)

    def _leave(self, rows: Rows, value: Any, how: int) -> Any:
        if not isinstance(value, Tensor):
            return value
        if how >= 0:
            return gathered(rows, how, value)
        graph = value.requires_grad and torch.is_grad_enabled()
        # A common value is the mean of equal ones: so its gradient is counted once.
        return averaged(rows, value) if how == MEAN or graph else value

    @contextmanager
    def _within(self, rows: Rows) -> Iterator[None]:
        self.inside, self.rows = True, rows
        try:
            yield
        finally:
            self.inside, self.rows = False, None

    @contextmanager
    def _numbers(self, rows: Rows, as_alone: bool) -> Iterator[None]:
        """Torch's random numbers inside a call: each worker's own, or those of a whole call.

        Outside, they go on alike on all workers.
        """
        self._as_alone = rows if as_alone else None
        if as_alone:
            with RowRandom(rows.mine, rows.start, rows.total):
                yield
            return
        generator = torch.default_generator
        outside = generator.get_state()
        if self._own_stream is None:
            seed = meaning_of(outside.numpy().tobytes(), rows.rank)
            self._own_stream = torch.Generator().manual_seed(seed).get_state()
        generator.set_state(self._own_stream)
        try:
            yield
        finally:
            self._own_stream = generator.get_state()
            generator.set_state(outside)

    def _again(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Inside a backward pass: a checkpoint computes a part once more."""
        rows = self._as_alone
        with nullcontext() if rows is None else RowRandom(rows.mine, rows.start, rows.total):
            return _plain_call(module, *args, **kwargs)

    # -- whether a call can be shared out ------------------------------------------------------

    def _kind_of(self, module: nn.Module, leaves: Leaves) -> _Kind:
        known = self._known.setdefault(module, _Known())
        key = (
            module.training, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"),
            leaves.spec, leaves.classes, leaves.shapes,
        )  # fmt: skip
        kind = known.kinds.get(key)
        if kind is None:
            rows = _most_rows(leaves)
            if rows < 2 * self._collective.workers and rows >= 0 and not known.kinds:
                return _Kind(None)  # a small batch tells nothing of the next one
            kind = known.kinds[key] = _Kind(self._plan(module, leaves))
            if kind.plan is None:
                name = type(module).__name__
                self._say_once(
                    f"{name}: its outputs are not row by row those of its inputs, so each worker "
                    "computes all of it, as one process does: right, and not faster"
                )
        return kind

    def _plan(self, module: nn.Module, leaves: Leaves) -> RowPlan | None:
        """Collective. Computes the call whole and shared, and puts everything back."""
        if watches_calls(module):
            return None
        for plan in candidates(leaves):
            rows = rows_of(leaves, plan)
            if rows is None or rows < self._collective.workers:
                continue
            if found := self._try(module, leaves, plan, self._rows(rows)):
                return found
        return None

    def _compare_again(self, module: nn.Module, leaves: Leaves, plan: RowPlan, count: int) -> None:
        if self._try(module, leaves, plan, self._rows(count)) != plan:
            raise _changed(module)

    @torch.no_grad()
    def _try(self, module: nn.Module, leaves: Leaves, plan: RowPlan, rows: Rows) -> RowPlan | None:
        state = ModuleState(module)
        try:
            whole = self._once(module, _copies(leaves.values), leaves, None)
            after = state.now()
            state.put_back()
            values = _copies(leaves.values)
            mine = [
                v if dim is None else rows.own(v, dim)
                for v, dim in zip(values, plan.inputs, strict=True)
            ]
            problem, part = None, None
            try:
                part = self._once(module, mine, leaves, rows)
            except (InputError, KeyboardInterrupt):
                raise
            except Exception as error:  # a model that wants its constant batch size
                problem = error
            kinds = self._outputs(whole, part, rows)
            kept = all(map(_equal, values, leaves.values))
            fits = problem is None and kept and state.same_as(after)
            return self._agreed(plan, kinds if fits else None)
        finally:
            state.put_back()

    def _once(
        self, module: nn.Module, values: Sequence[Any], leaves: Leaves, rows: Rows | None
    ) -> Leaves:
        args, kwargs = leaves.with_values(values)
        drawn = nullcontext() if rows is None else RowRandom(rows.mine, rows.start, rows.total)
        self.inside, self.rows = True, rows
        try:
            with drawn:
                return Leaves.of(_plain_call(module, *args, **kwargs))
        finally:
            self.inside, self.rows = False, None

    def _outputs(self, whole: Leaves, part: Leaves | None, rows: Rows) -> list[int] | None:
        """Collective, if the worker could compute its part."""
        alike = part is not None and whole.alike(part)
        there = self._collective.sum(torch.tensor([float(alike)]))
        if int(there) != self._collective.workers or part is None:
            return None
        kinds = []
        for one, other in zip(whole.values, part.values, strict=True):
            mean = None
            if isinstance(other, Tensor) and other.dim() == 0 and other.is_floating_point():
                mean = self._collective.sum(other.reshape(1).cpu() * rows.weight)[0]
            kinds.append(output_kind(one, other, mean, rows.start, rows.total))
        return kinds

    def _agreed(self, plan: RowPlan, kinds: Sequence[int] | None) -> RowPlan | None:
        """A plan, if all workers found the same. A part may look common to one of them only."""
        told = self._collective.sum(torch.tensor([float(kinds is None)]))
        if float(told) or kinds is None:
            return None
        mine = torch.tensor([kinds], dtype=torch.int64).view(1, -1)
        found = self._collective.gather(mine, [1] * self._collective.workers)
        best = tuple(int(column.max()) for column in found.unbind(1))
        for column, chosen in zip(found.unbind(1), best, strict=True):
            if NOT_ROWS in column or any(int(k) not in (chosen, COMMON) for k in column):
                return None
        return RowPlan(plan.inputs, best)


def _changed(module: nn.Module) -> InputError:
    name = type(module).__name__
    return InputError(
        f"{name} does not compute row by row any more: what it returns for a part of a batch is "
        "not that part of what it returns for the whole",
        "It began in the middle of the training, after steps that were shared out. Run it with "
        "one worker, or with --view parts, which checks losses instead.",
    )


def _wants(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad


def _copies(values: Sequence[Any]) -> list[Any]:
    """A model may write into what it is given."""
    return [v.detach().clone() if isinstance(v, Tensor) else v for v in values]


def _equal(value: Any, before: Any) -> bool:
    """Whether a model has left alone what it was given."""
    return not isinstance(value, Tensor) or torch.equal(value, before.detach())


def _most_rows(leaves: Leaves) -> int:
    return max((v.shape[0] for v in leaves.values if isinstance(v, Tensor) and v.dim()), default=0)


def _slots(module: nn.Module) -> list[_Slot]:
    """Where the parameters that want gradients are found, each at every place that it has."""
    return [
        (owner._parameters, name)
        for owner in module.modules()
        for name, parameter in owner._parameters.items()
        if parameter is not None and parameter.requires_grad
    ]


@contextmanager
def _swapped(slots: Sequence[_Slot], values: dict[int, Tensor]) -> Iterator[None]:
    """Inside, modules find ``values`` in place of their parameters."""
    before = [where[name] for where, name in slots]
    for (where, name), parameter in zip(slots, before, strict=True):
        where[name] = values[id(parameter)]
    try:
        yield
    finally:
        for (where, name), parameter in zip(slots, before, strict=True):
            where[name] = parameter


# -- what torch calls ----------------------------------------------------------------------------


class _Sharing(threading.local):
    calls: SharedCalls | None = None


_sharing = _Sharing()


def share_calls(calls: SharedCalls | None) -> None:
    """From now on this worker shares out its calls of models; ``None``: it does no longer."""
    _sharing.calls = calls
    if calls is not None and nn.Module.__call__ is _plain_call:
        setattr(nn.Module, "__call__", _call)  # noqa: B010
        torch.nn.functional.batch_norm = _batch_norm


def _call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    calls = _sharing.calls
    if calls is None or calls.inside:
        return _plain_call(self, *args, **kwargs)
    return calls.call(self, args, kwargs)


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    calls = _sharing.calls
    if not training or calls is None or calls.rows is None:
        return _plain_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    return batch_norm.batch_norm(
        calls.rows, input, running_mean, running_var, weight, bias, momentum, eps
    )
