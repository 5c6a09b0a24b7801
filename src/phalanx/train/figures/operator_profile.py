"""Profiles some steps of this worker by torch's profiler, with ranges for what Phalanx does in them.

Nothing here is loaded, and a step is as it always is, unless ``--profile`` was given.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch.profiler import record_function

from phalanx.core.context import call_at_end
from phalanx.observe.operators.step_window import FIRST, StepWindow, TorchRecorder
from phalanx.observe.operators.trace_table import OURS
from phalanx.sync.reduce.worker_collective import WorkerCollective
from phalanx.sync.state.shard_optimizer import ShardOptimizer
from phalanx.train.loop.segments import WorkerParts

_EXCHANGES = ("step", "end_round", "share_gradients", "clip_gradients")


def profile_steps(parts: WorkerParts) -> None:
    """Profile the steps of a worker that ``--profile`` asks for, once it has taken the first ones.

    The first steps of an adopted script are checked by a process that takes a core too.
    """
    environment = parts.environment
    chosen, paths, rank = environment.settings, environment.paths, environment.rank
    if paths is None:
        return
    checked = chosen.adopt and environment.workers > 1 and chosen.check > 0
    window = StepWindow(
        TorchRecorder(torch, partial(_named_parts, parts)),
        paths.operators_of(rank),
        paths.trace_of(rank),
        steps=chosen.profile_steps,
        first=FIRST + (2 * chosen.check + 2 if checked else 0),
    )
    parts.steps.watchers.append(window.stepped)
    call_at_end(window.end)


@contextmanager
def _named_parts(parts: WorkerParts) -> Iterator[None]:
    """Make ranges of the parts of a step that are Phalanx's, until the context is left."""
    engine = parts.trained.engine
    with ExitStack() as stack:
        several = engine.workers > 1 or engine.copies > 1
        for name in _EXCHANGES if several else ():
            stack.enter_context(_named(engine.exchange, name, "exchange"))
        stack.enter_context(_named(ShardOptimizer, "update", "optimizer"))
        stack.enter_context(_named(WorkerCollective, "sum_written", "sum"))
        stack.enter_context(_named(WorkerCollective, "gather", "gather"))
        stack.enter_context(_named_input(parts.stopwatch))
        yield


@contextmanager
def _named(owner: Any, name: str, label: str) -> Iterator[None]:
    plain = getattr(owner, name)

    def named(*args: Any, **kwargs: Any) -> Any:
        with record_function(OURS + label):
            return plain(*args, **kwargs)

    with _replaced(owner, name, named):
        yield


@contextmanager
def _named_input(stopwatch: Any) -> Iterator[None]:
    """Make a range from asking for a batch to having it."""
    plain_asked, plain_received = stopwatch.asked, stopwatch.received
    waiting = ExitStack()

    def asked() -> Any:
        waiting.close()
        waiting.enter_context(record_function(OURS + "input"))
        return plain_asked()

    def received(*args: Any) -> None:
        waiting.close()
        plain_received(*args)

    with _replaced(stopwatch, "asked", asked), _replaced(stopwatch, "received", received), waiting:
        yield


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    own = vars(owner).get(name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own is None:
            delattr(owner, name)
        else:
            setattr(owner, name, own)
