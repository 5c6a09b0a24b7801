"""``SharedCalls``: calls of models, shared out among the workers by rows.

The outermost call of a module that has parameters is shared out: this worker computes its rows, and
the script gets the outputs of all rows. The first call of each kind is computed both ways to find
whether it can be shared; if not, every worker computes all of it, which is right but not faster.
Some later calls are compared again, because a model may change its behaviour.
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
import torch.utils.checkpoint
from torch import Tensor, nn

from phalanx.core.errors import InputError
from phalanx.policies.sample_assignment import split_among_all
from phalanx.sync.reduce.worker_collective import WorkerCollective, meaning_of
from phalanx.train.whole import batch_norm
from phalanx.train.whole.batch_norm import cross_entropy
from phalanx.train.whole.comparison import CallState, Comparison, entered_values
from phalanx.train.whole.module_state import Slot, spare_hooks, survey, swapped, watches_calls
from phalanx.train.whole.operators import Rows, averaged, gathered
from phalanx.train.whole.row_plan import (
    MEAN,
    Leaves,
    RowPlan,
    RowRandom,
    candidates,
    rows_of,
    signature,
)

_plain_call = nn.Module.__call__
_plain_norm = torch.nn.functional.batch_norm
_plain_entropy = torch.nn.functional.cross_entropy
_plain_hook = Tensor.register_hook
_plain_checkpoint = torch.utils.checkpoint._checkpoint_without_reentrant_generator

MOST_KINDS = 64
"""Most ways of calling one module that are examined; further ones are computed whole."""


@dataclass
class _Kind:
    """What is known of one kind of call of a model: by the types of its tensors, and its mode."""

    plan: RowPlan | None
    """How such calls are shared out; ``None`` if they cannot be."""
    draws_alike: bool = False
    """Whether its random numbers have to be those of one process in all calls."""
    meaning: int = 0
    calls: int = 0
    compared: int = 1
    """The call after which it was last compared."""


@dataclass
class _Known:
    """Facts about a module from its calls so far."""

    kinds: dict[Any, _Kind] = field(default_factory=dict)
    others: _Kind = field(default_factory=lambda: _Kind(None))
    small: int = 0
    """How many small batches could not be shared out."""


class SharedCalls(CallState):
    def __init__(
        self,
        collective: WorkerCollective,
        shares: Callable[[], Sequence[float]],
        say_once: Callable[[str], None],
    ) -> None:
        super().__init__()
        self.plain = _plain_call
        self._collective, self._shares, self._say_once = collective, shares, say_once
        self._known: weakref.WeakKeyDictionary[nn.Module, _Known] = weakref.WeakKeyDictionary()
        self.own_stream: Tensor | None = None
        """The state of random numbers inside calls, if this worker has its own."""
        self.alone_left = 0
        """For how many more steps calls use the random numbers of one process."""
        self._alone = False
        """Whether the random numbers of the newest shared call were those of one process."""
        self.trained = 0
        """Rows of the largest shared call with gradients since the last step, of all workers."""
        self.computed = 0
        """How many of those rows this worker computed."""

    # -- a call ------------------------------------------------------------------------------

    def call(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if torch._C._current_graph_task_id() != -1:
            return self.plain(module, *args, **kwargs)
        mode, slots, sharable = survey(module)
        if sharable and not slots and next(module.parameters(), None) is None:
            return self.plain(module, *args, **kwargs)
        if not sharable or torch._C._functorch.peek_interpreter_stack() is not None:
            return self._whole(module, args, kwargs)
        grads = torch.is_grad_enabled()
        leaves, slots = Leaves.of((args, kwargs)), slots if grads else []
        kind = self._kind_of(module, leaves, mode, slots)
        plan = kind.plan
        rows = None if plan is None else rows_of(leaves, plan)
        kind.calls += 1
        if kind.calls <= 16 or kind.calls % 8 == 0:
            self._compare_inputs(kind, leaves)
        if plan is None or rows is None or rows < self._collective.workers:
            self._note(rows or _most_rows(leaves), None)
            return self._whole(module, args, kwargs)
        shared = self._rows(rows)
        if kind.calls >= 4 * kind.compared:
            kind.compared = kind.calls
            if Comparison(self, module, leaves, shared).plan(plan, slots) != plan:
                raise _changed(module)
        self._note(rows, shared)
        return self._share(module, leaves, kind, shared, slots)

    def _note(self, rows: int, shared: Rows | None) -> None:
        if torch.is_grad_enabled() and rows > self.trained:
            self.trained, self.computed = rows, rows if shared is None else shared.mine

    def _whole(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        with self.within(None):
            return self.plain(module, *args, **kwargs)

    def _rows(self, count: int) -> Rows:
        ends = [0, *split_among_all(count, list(self._shares()))]
        sizes = tuple(b - a for a, b in itertools.pairwise(ends))
        return Rows(self._collective, sizes)

    def _share(
        self, module: nn.Module, leaves: Leaves, kind: _Kind, rows: Rows, slots: Sequence[Slot]
    ) -> Any:
        plan = kind.plan
        assert plan is not None
        spare_hooks(slots)
        values, inner = entered_values(rows, list(leaves.values), plan, slots)
        args, kwargs = leaves.with_values(values)
        self._alone = kind.draws_alike or self.alone_left > 0
        with swapped(slots, inner), self.within(rows), self._numbers(rows):
            out = Leaves.of(self.plain(module, *args, **kwargs))
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
        # A common value is the mean of equal ones, so its gradient is counted once.
        return averaged(rows, value) if how == MEAN or graph else value

    @contextmanager
    def _numbers(self, rows: Rows) -> Iterator[None]:
        """Set torch's random numbers during a call: each worker's own, or its rows' part of those
        for the whole. Outside of calls they are the same on all workers."""
        if self._alone:
            with RowRandom(rows.mine, rows.start, rows.total):
                yield
            return
        generator = torch.default_generator
        outside = generator.get_state()
        if self.own_stream is None:
            seed = meaning_of(outside.numpy().tobytes(), rows.collective.rank)
            self.own_stream = torch.Generator().manual_seed(seed).get_state()
        generator.set_state(self.own_stream)
        try:
            yield
        finally:
            self.own_stream = generator.get_state()
            generator.set_state(outside)

    def computed_again(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a checkpoint's ``function``, so that the backward pass recomputes the same rows."""
        rows, alone = self.rows, self._alone
        assert rows is not None

        def again(*args: Any, **kwargs: Any) -> Any:
            if self.inside:
                return function(*args, **kwargs)
            drawn = RowRandom(rows.mine, rows.start, rows.total) if alone else nullcontext()
            with self.within(rows), drawn:
                return function(*args, **kwargs)

        return again

    # -- whether a call can be shared out ------------------------------------------------------

    def _kind_of(
        self, module: nn.Module, leaves: Leaves, mode: Sequence[Any], slots: Sequence[Slot]
    ) -> _Kind:
        known = self._known.setdefault(module, _Known())
        key = (
            tuple(mode), torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"),
            leaves.spec, leaves.classes, leaves.shapes,
        )  # fmt: skip
        kind = known.kinds.get(key)
        if kind is not None or len(known.kinds) >= MOST_KINDS:
            return kind or known.others
        name = type(module).__name__
        kind = self._new_kind(module, leaves, slots)
        kind.meaning = meaning_of(name, leaves.shapes)
        if kind.plan is None and _most_rows(leaves) < 2 * self._collective.workers:
            known.small += 1
            if known.small <= 4:  # a small batch tells little about the next one
                return kind
        known.kinds[key] = kind
        if kind.plan is None:
            self._say_once(
                f"{name}: its outputs are not row by row those of its inputs, so each worker "
                "computes all of it, as one process does: right, and not faster"
            )
        return kind

    def _new_kind(self, module: nn.Module, leaves: Leaves, slots: Sequence[Slot]) -> _Kind:
        """Compute a call whole and shared, and put everything back. Collective."""
        if not watches_calls(module):
            for plan in candidates(leaves):
                rows = rows_of(leaves, plan)
                if rows is not None and rows >= self._collective.workers:
                    compared = Comparison(self, module, leaves, self._rows(rows))
                    if found := compared.plan(plan, slots):
                        return _Kind(found, compared.draws_alike)
        return _Kind(None)

    def _compare_inputs(self, kind: _Kind, leaves: Leaves) -> None:
        """Compare the inputs of all workers; unlike processors round differently. Collective."""
        mine = signature(leaves)
        told = self._collective.sum(mine, kind.meaning).tolist()
        own, scale = mine.tolist()
        workers = self._collective.workers
        if abs(told[0] - workers * own) > 1e-4 * workers * scale:
            raise InputError(
                "the workers diverged: they call a model with different batches",
                "Each worker runs the whole script: what it draws and makes has to be the same on "
                "all of them, so seed what is random (also numpy's default_rng), and do not make "
                "batches by time or by the machine.",
            )


def _changed(module: nn.Module) -> InputError:
    name = type(module).__name__
    return InputError(
        f"{name} does not compute row by row any more: what it returns for a part of a batch is "
        "not that part of what it returns for the whole",
        "It began in the middle of the training, after steps that were shared out. Run it with "
        "one worker, or with --view parts, which checks losses instead.",
    )


def _most_rows(leaves: Leaves) -> int:
    return max((v.shape[0] for v in leaves.values if isinstance(v, Tensor) and v.dim()), default=0)


# -- what torch calls ----------------------------------------------------------------------------


class _Sharing(threading.local):
    calls: SharedCalls | None = None


_sharing = _Sharing()


def share_calls(calls: SharedCalls | None) -> None:
    """Share out this thread's calls of models from now on; ``None`` ends that."""
    _sharing.calls = calls
    if calls is not None and nn.Module.__call__ is _plain_call:
        setattr(nn.Module, "__call__", _call)  # noqa: B010
        torch.nn.functional.batch_norm = _batch_norm
        torch.nn.functional.cross_entropy = _cross_entropy
        setattr(Tensor, "register_hook", _register_hook)  # noqa: B010
        setattr(torch.utils.checkpoint, _plain_checkpoint.__name__, _checkpoint)


def _call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    calls = _sharing.calls
    if calls is None or calls.inside or torch._C._get_tracing_state():
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
    if not training or calls is None or not calls.inside:
        return _plain_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    if calls.rows is None:
        calls.exchanges = True
        if calls.dry:  # for a single row torch refuses to compute statistics
            running_mean, running_var = (
                input.new_zeros(input.shape[1]),
                input.new_ones(input.shape[1]),
            )
            training = False
        return _plain_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    return batch_norm.batch_norm(
        calls.rows, input, running_mean, running_var, weight, bias, momentum, eps
    )


def _cross_entropy(input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    calls = _sharing.calls
    if calls is None or not calls.inside or target.is_floating_point():
        return _plain_entropy(input, target, *args, **kwargs)
    if calls.rows is None:
        calls.exchanges = True
        return _plain_entropy(input, target, *args, **kwargs)
    return cross_entropy(calls.rows, _plain_entropy, input, target, *args, **kwargs)


def _register_hook(self: Tensor, hook: Any) -> Any:
    if _sharing.calls is not None and _sharing.calls.inside:
        _sharing.calls.hooked = True
    return _plain_hook(self, hook)  # type: ignore[no-untyped-call]


def _checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
    calls = _sharing.calls
    if calls is not None and calls.rows is not None:
        function = calls.computed_again(function)
    return _plain_checkpoint(function, *args, **kwargs)
