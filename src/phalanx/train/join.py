"""``join``: your own loop, on all the workers of the run."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from phalanx.adapters.torch_models import as_models, as_optimizers, count_parameters, move
from phalanx.core.errors import InputError
from phalanx.core.spec import Spec, parse_spec
from phalanx.observe.emit import EventWriter
from phalanx.sync.clock import MonotonicClock
from phalanx.train.environment import Environment, detect
from phalanx.train.lifetime import Lifetime
from phalanx.train.precision import Trial, choose
from phalanx.train.run import Run
from phalanx.train.shared_engine import make_engine
from phalanx.train.stopwatch import Stopwatch

BUFFER_POLICIES = ("auto", "average", "first")


def join(
    models: nn.Module | Sequence[nn.Module],
    optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    buffers: str = "auto",
) -> Run:
    """Join the run that this process was started for; alone, simply train here.

    Moves the models to this worker's device and gives every worker the first one's weights.
    ``buffers``: ``auto`` averages batch-norm statistics over workers and takes other buffers
    from the first, ``average`` averages every floating-point buffer, ``first`` none.
    """
    return join_with(models, optimizers, buffers=buffers)


def join_with(
    models: nn.Module | Sequence[nn.Module],
    optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    buffers: str = "auto",
    trial: Trial | None = None,
    environment: Environment | None = None,
) -> Run:
    """:func:`join`, with a ``trial`` step for timing precisions when the caller has one."""
    if buffers not in BUFFER_POLICIES:
        raise InputError(f"buffers='{buffers}' is unknown", f"Use {', '.join(BUFFER_POLICIES)}.")
    environment, clock = environment or detect(), MonotonicClock()
    paths = environment.paths
    writer = EventWriter(paths.events_of(environment.rank) if paths else None, environment.rank)
    lifetime = Lifetime(environment, writer, clock)
    found, opts, spec = as_models(models), as_optimizers(optimizers), _spec(environment)
    move(found, environment.device, channels_last=False)
    precision, note = _precision(environment, trial)
    move(found, environment.device, channels_last=precision == "bfloat16")
    engine = make_engine(
        environment.arena,
        found,
        opts,
        spec,
        clock,
        divide_rate=environment.settings.divide_rate,
        buffers=buffers,
    )
    notes = [n for n in (note, *_notes(environment, spec, precision, note)) if n]
    lifetime.joined(
        precision=precision,
        strategy=spec.text,
        parameters=count_parameters(found),
        notes=notes,
    )
    return Run(
        environment, engine, found, opts, spec, precision, Stopwatch(clock, writer), lifetime
    )


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
    divided = [p.name for p in spec.phases if p.traits.divides_rate]
    if divided and environment.workers > 1 and environment.settings.divide_rate:
        notes.append(f"learning rate ÷ {environment.workers} under {', '.join(divided)}")
    if any(not p.traits.lockstep for p in spec.phases) and environment.workers > 1:
        notes.append("asynchronous updates depend on timing: this run will not repeat exactly")
    return notes
