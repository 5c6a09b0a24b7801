"""Profiles some steps of this worker, with ranges for what Phalanx does in them.

Nothing here is loaded, and a step is as it always is, unless ``--profile`` was given.
"""

from __future__ import annotations

from contextlib import ExitStack
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
    """Profile the steps that ``--profile`` asks for, once the worker has taken the first ones."""
    environment = parts.environment
    chosen, paths = environment.settings, environment.paths
    if paths is None:
        return
    # A process that checks the first steps of an adopted script takes a core too.
    checked = chosen.adopt and environment.workers > 1 and chosen.check > 0
    window = StepWindow(
        TorchRecorder(torch, partial(_name_parts, parts)),
        paths.profiles / f"rank-{environment.rank}.json",
        steps=chosen.profile_steps,
        first=FIRST + (2 * chosen.check + 2 if checked else 0),
    )
    parts.steps.watchers.append(window.stepped)
    call_at_end(window.end)


def _name_parts(parts: WorkerParts) -> None:
    """Make ranges of the parts of a step that are Phalanx's; without a profiler they cost little,
    so they stay."""
    engine, stopwatch = parts.trained.engine, parts.stopwatch
    places: list[tuple[Any, str, str]] = [
        (ShardOptimizer, "update", "optimizer"),
        (WorkerCollective, "sum_written", "sum"),
        (WorkerCollective, "gather", "gather"),
    ]
    if engine.workers > 1 or engine.copies > 1:
        places += [(engine.exchange, name, "exchange") for name in _EXCHANGES]
    for owner, name, label in places:
        setattr(owner, name, record_function(OURS + label)(getattr(owner, name)))

    waiting = ExitStack()
    plain_asked, plain_received = stopwatch.asked, stopwatch.received

    def asked() -> float:
        waiting.close()
        waiting.enter_context(record_function(OURS + "input"))
        return plain_asked()

    def received(asked: float, samples: int) -> None:
        waiting.close()
        plain_received(asked, samples)

    vars(stopwatch).update(asked=asked, received=received)
