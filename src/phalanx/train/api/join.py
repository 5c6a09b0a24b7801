"""``join``: your own loop, on all the workers of the run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

from phalanx.adapters.torch_models import (
    as_models,
    as_optimizers,
    check_apart,
    count_parameters,
    move,
    move_state,
)
from phalanx.core import settings
from phalanx.core.errors import InputError
from phalanx.core.spec import Spec, parse_spec
from phalanx.observe.events.emit import EventWriter
from phalanx.observe.machines.emulated import describe_emulation
from phalanx.train.api.precision import Trial, choose
from phalanx.train.api.run import Run
from phalanx.train.checkpoint.checkpointing import Resumed, Trained
from phalanx.train.checkpoint.kept_state import Keeper
from phalanx.train.loop.schedule import Schedule
from phalanx.train.loop.shared_engine import make_engine
from phalanx.train.loop.stopwatch import Stopwatch
from phalanx.train.loop.warmup import warm_up
from phalanx.train.start.environment import Environment, detect
from phalanx.train.start.lifecycle import Lifecycle
from phalanx.train.start.seed import CommonSeed

BUFFER_POLICIES = ("auto", "average", "first")
LOSSES = ("mean", "sum")


def join(
    models: nn.Module | Sequence[nn.Module],
    optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    buffers: str = "auto",
    state: Mapping[str, Keeper] | None = None,
    loss: str = "mean",
) -> Run:
    """Join the run that this process was started for; alone, simply train here.

    Moves the models to this worker's device and gives every worker the first one's weights.
    ``buffers``: ``auto`` averages batch-norm statistics over workers and takes other buffers
    from the first, ``average`` averages every floating-point buffer, ``first`` none. ``state``
    names what else is saved with the run and restored when it is resumed: anything with
    ``state_dict`` and ``load_state_dict``, such as a scheduler. ``loss`` says what the script
    makes of a batch: a ``mean`` over its samples, or a ``sum``.
    """
    run = join_with(models, optimizers, buffers=buffers, loss=loss)
    run.keep(**(state or {}))
    return run


def join_with(
    models: nn.Module | Sequence[nn.Module],
    optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    buffers: str = "auto",
    trial: Trial | None = None,
    environment: Environment | None = None,
    loss: str = "mean",
) -> Run:
    """:func:`join`, with a ``trial`` step for timing precisions when the caller has one."""
    if buffers not in BUFFER_POLICIES:
        raise InputError(f"buffers='{buffers}' is unknown", f"Use {', '.join(BUFFER_POLICIES)}.")
    if loss not in LOSSES:
        raise InputError(f"loss='{loss}' is unknown", f"Use {' or '.join(LOSSES)}.")
    seeds = CommonSeed.now()
    environment = environment or detect()
    if environment.launched and not environment.thread:
        os.environ[settings.PROCESS] = str(os.getpid())  # what it starts is no worker
    clock = environment.clock
    paths = environment.paths
    writer = EventWriter(paths.events_of(environment.rank) if paths else None, environment.rank)
    lifetime = Lifecycle(environment, writer, clock)
    found, opts, spec = as_models(models), as_optimizers(optimizers), _spec(environment)
    if environment.workers > 1:
        check_apart(opts)
    move(found, environment.device, channels_last=False)
    precision, note = _precision(environment, trial)
    move(found, environment.device, channels_last=precision == "bfloat16")
    move_state(opts)
    resumed = _resumed(environment, spec, lifetime.training)
    start = resumed.start if resumed else None
    if resumed:
        resumed.unfreeze(found)
    engine = make_engine(
        environment.arena,
        found,
        opts,
        spec,
        clock,
        environment.settings,
        buffers=buffers,
        machine=environment.machine,
        first=start.phase if start and resumed and resumed.same_spec else 0,
    )
    trained = Trained(engine, found, opts, {}, lifetime.training)
    if resumed:
        resumed.restore(trained)
    if environment.launched:
        warm_up(steps=environment.arena is None or any(p.traits.local for p in spec.phases))
    notes = [n for n in (note, *_notes(environment, spec, precision, note)) if n]
    lifetime.joined(
        precision=precision,
        strategy=spec.text,
        phase=engine.phase,
        parameters=count_parameters(found),
        notes=notes,
    )
    course, stopwatch = Schedule(engine, spec, start), Stopwatch(clock, writer)
    run = Run(environment, trained, course, precision, stopwatch, lifetime, resumed, loss=loss)
    if environment.workers > 1:
        seeds.own(environment.rank)
        run.on_finish = seeds.common
    return run


def _resumed(environment: Environment, spec: Spec, training: int) -> Resumed | None:
    if environment.settings.resume is None:
        return None
    path = Path(environment.settings.resume)
    resumed = Resumed(path, environment.rank, environment.workers, spec.text)
    return resumed if resumed.training == training else None


def _spec(environment: Environment) -> Spec:
    if environment.workers == 1 and not environment.launched:
        return parse_spec("single")
    return parse_spec(environment.settings.strategy)


def _precision(environment: Environment, trial: Trial | None) -> tuple[str, str | None]:
    """The first worker decides: all must compute alike."""
    chosen, note = choose(environment.settings.precision, environment.device, trial)
    if environment.arena is not None:
        cell = environment.arena.region("precision", 1, torch.int64)
        if environment.rank == 0:
            cell[0] = int(chosen == "bfloat16")
        environment.arena.barrier()
        chosen = "bfloat16" if int(cell[0]) else "float32"
    return chosen, note


def _notes(environment: Environment, spec: Spec, precision: str, note: str | None) -> list[str]:
    notes = []
    if precision != "float32" and note is None:
        notes.append(f"precision: {precision}, channels_last")
    divided = [p.name for p in spec.phases if p.traits.divides_rate and not p.traits.grouped]
    if environment.workers > 1 and environment.settings.divide_rate:
        if divided:
            notes.append(f"learning rate ÷ {environment.workers} under {', '.join(divided)}")
        if any(p.traits.grouped for p in spec.phases):
            notes.append("learning rate ÷ the number of groups under groups")
    free = any(not p.traits.lockstep for p in spec.phases)
    if free and environment.workers > 1 and not environment.thread:
        notes.append("asynchronous updates depend on timing: this run will not repeat exactly")
    if emulated := describe_emulation(environment.settings):
        notes.append(f"emulated: {emulated}")
    return notes
