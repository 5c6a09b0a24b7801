"""``build_worker``: makes everything that a worker trains with, in order."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from phalanx.adapters import torch_models
from phalanx.core import settings
from phalanx.core.errors import InputError
from phalanx.core.settings import AUTOCASTS, CompileMode, describe_emulation, mark
from phalanx.core.spec import parse_spec
from phalanx.observe.events.emit import EventWriter
from phalanx.train.checkpoint.checkpointing import Checkpointer, Trained
from phalanx.train.control.directives import CheckpointTimer, CommandPoller
from phalanx.train.engine.best_model import Best
from phalanx.train.engine.emulation import emulation_of
from phalanx.train.engine.engine import Engine, Script
from phalanx.train.engine.shared_engine import SharedEngine
from phalanx.train.figures.epoch_figures import Figures
from phalanx.train.figures.evaluation import Evaluator
from phalanx.train.figures.training_events import TrainingEvents
from phalanx.train.loop.rate_schedules import RateSchedules
from phalanx.train.loop.same_data import CheckedReaders
from phalanx.train.loop.segments import WorkerParts
from phalanx.train.loop.training_loop import TrainingLoop
from phalanx.train.samples.schedule import TrainingSchedule
from phalanx.train.start.environment import Environment, between_machines, saves_checkpoints
from phalanx.train.start.lifecycle import Lifecycle
from phalanx.train.start.seed import CommonSeed
from phalanx.train.step.carried_state import CarriedState
from phalanx.train.step.gradient_weight import GradientWeight
from phalanx.train.step.loss_kind import AdoptedLoss, LossWatch
from phalanx.train.step.nonfinite import skip_on_device
from phalanx.train.step.stepper import Stepper
from phalanx.train.step.stopwatch import Stopwatch
from phalanx.train.worker.precision import Trial, agree, loss_scaler, switch_on_tf32

if TYPE_CHECKING:
    from phalanx.train.checkpoint.resuming import Resumed
    from phalanx.train.profile.profiling import Profiling

LOSS_SCALE = "precision.float16"
"""The name of the loss scale in a checkpoint; a script cannot keep anything under this name."""


def build_worker(
    environment: Environment,
    models: nn.Module | Sequence[nn.Module],
    optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    seeds: CommonSeed,
    buffers: str = "auto",
    loss: str = "mean",
    trial: Trial | None = None,
    notes: Sequence[str] = (),
    compile: CompileMode = "off",
    whole: bool = False,
) -> tuple[WorkerParts, TrainingLoop]:
    """Make a worker. Collective. ``trial`` does a step in a precision, to time it; ``seeds``:
    common random states; ``notes`` are reported first; ``compile``: the script's choice."""
    rank, chosen = environment.rank, environment.settings
    paths = environment.paths
    writer = EventWriter(paths.events_of(rank) if paths else None, rank)
    lifecycle = Lifecycle(environment, writer)
    profiling = _profiling(environment, writer)
    stopwatch = profiling or Stopwatch(environment.clock, writer)
    events = TrainingEvents(rank, stopwatch, lifecycle.epochs_before, between_machines(environment))
    script = _prepare(environment, models, optimizers, trial, buffers, loss)
    resumed = _resumed(script, lifecycle.training)
    timer = CheckpointTimer(chosen.checkpoint_minutes if saves_checkpoints(environment) else None)
    poller = CommandPoller(environment, timer, lifecycle)
    engine = _engine(script, resumed, poller, events, profiling, whole=whole)
    trained = _trained(script, engine, resumed, lifecycle)
    if environment.launched:
        _warm_up()
    lifecycle.joined(
        precision=script.precision,
        strategy=script.spec.text,
        phase=engine.phase,
        parameters=torch_models.count_parameters(script.models),
        notes=[*notes, *script.notes],
    )
    schedule = TrainingSchedule(script.spec, resumed.start if resumed else None, script.optimizers)
    evaluator = Evaluator(engine, environment.device, script.precision in AUTOCASTS)
    checkpointer = Checkpointer(environment, trained, schedule, stopwatch, timer, lifecycle.spend)
    figures = Figures(
        environment, trained, stopwatch, lifecycle, events, evaluator, checkpointer,
        resumed.best_weights if resumed else None,
    )  # fmt: skip
    _compile(script, compile, figures)
    skip_on_device(script, engine, figures.say_once)
    parts = WorkerParts(
        environment, trained, schedule, stopwatch, lifecycle, events, evaluator, checkpointer,
        figures,
        Stepper(script, engine, trained.weight, stopwatch, _losses(script.loss, engine)),
        RateSchedules(engine, script.optimizers),
        CarriedState(script.models, stopwatch) if engine.workers > 1 else None,
        resumed, seeds, script.precision, script.rounding,
        CheckedReaders(engine, chosen.seed, environment.device),
    )  # fmt: skip
    if environment.workers > 1 and not whole:
        seeds.own(rank)
    _profile(parts, profiling)
    return parts, TrainingLoop(parts)


def _profile(parts: WorkerParts, profiling: Profiling | None) -> None:
    if profiling is not None:
        profiling.watch(parts)
    elif parts.environment.settings.profile_steps and parts.trained.training == 0:
        from phalanx.train.worker.operator_profile import profile_steps

        profile_steps(parts)


def _compile(script: Script, asked: CompileMode, figures: Figures) -> None:
    chosen = script.environment.settings
    mode = asked if chosen.compile == "off" else chosen.compile
    if mode != "off" and chosen.profile is None:
        from phalanx.train.worker.compiling import compile_models

        compile_models(script.models, mode, script.environment.device, figures.say_once)


def _prepare(
    environment: Environment,
    models: nn.Module | Sequence[nn.Module],
    optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    trial: Trial | None,
    buffers: str,
    loss: str,
) -> Script:
    if environment.launched and not environment.thread:
        os.environ[settings.PROCESS] = str(os.getpid())  # processes that it starts are no workers
    found = torch_models.as_models(models)
    alone = environment.workers == 1 and not environment.launched
    spec = parse_spec("single" if alone else environment.settings.strategy)
    opts = torch_models.as_optimizers(optimizers, closures=environment.settings.adopt)
    if environment.workers > 1:
        torch_models.check_apart(opts)
    torch_models.move(found, environment.device, channels_last=False)
    precision, note = agree(environment, trial)
    rounding = switch_on_tf32() if precision == "tf32" else ExitStack()
    torch_models.move(found, environment.device, channels_last=precision in AUTOCASTS)
    torch_models.move_state(opts)
    notes = [] if note is None else [note]
    script = Script(environment, found, opts, spec, precision, rounding, notes, buffers, loss)
    notes += _notes(script)
    return script


def _resumed(script: Script, training: int) -> Resumed | None:
    environment = script.environment
    if environment.settings.resume is None:
        return None
    from phalanx.train.checkpoint.resuming import Resumed

    path = Path(environment.settings.resume)
    resumed = Resumed(path, environment.rank, environment.workers, script.spec.text)
    if resumed.training != training:
        return None
    resumed.unfreeze(script.models)
    return resumed


def _profiling(environment: Environment, writer: EventWriter) -> Profiling | None:
    seconds = environment.settings.profile
    if seconds is None or environment.arena is not None:
        return None
    from phalanx.train.profile.profiling import Profiling

    return Profiling(environment, seconds, writer)


def _engine(
    script: Script,
    resumed: Resumed | None,
    poller: CommandPoller,
    events: TrainingEvents,
    profiling: Profiling | None,
    *,
    whole: bool,
) -> Engine:
    environment, chosen = script.environment, script.environment.settings
    if environment.arena is None:
        own = script.models, script.optimizers, environment.clock
        emulation = emulation_of(chosen, 0, None, environment.virtual)
        if profiling is not None:
            from phalanx.train.profile.profiling import ProfilingEngine

            return ProfilingEngine(profiling, *own, emulation, poller)
        return Engine(*own, emulation, poller)
    if any(phase.name == "single" for phase in script.spec.phases):
        raise InputError("'single' has one worker", "Use --workers 1, or another strategy.")
    if whole:
        from phalanx.train.whole.whole_engine import WholeEngine

        return WholeEngine(script, poller, events)
    first = resumed.start.phase if resumed and resumed.same_spec else 0
    return SharedEngine(script, first, poller, events)


def _trained(
    script: Script, engine: Engine, resumed: Resumed | None, lifecycle: Lifecycle
) -> Trained:
    scaler = loss_scaler(script.precision, script.optimizers)
    trained = Trained(
        engine,
        script.models,
        script.optimizers,
        GradientWeight(script.optimizers, sums=script.loss == "sum", scaler=scaler),
        Best(engine, resumed.best if resumed else None),
        resumed.history if resumed else [],
        lifecycle.training,
        {} if scaler is None else {LOSS_SCALE: scaler},
    )
    if resumed:
        resumed.restore(trained)
    return trained


def _losses(loss: str, engine: Engine) -> LossWatch:
    """Make the watch of losses; ``auto`` and ``part`` are kinds of adopted scripts."""
    if loss != "auto" or engine.copies > 1:
        return LossWatch(sums=loss == "sum", parts=loss in ("part", "auto"))
    return AdoptedLoss(engine, engine.region("kinds of losses", engine.workers, torch.int64))


def _notes(script: Script) -> list[str]:
    environment, spec = script.environment, script.spec
    notes: list[str] = []
    if script.precision != "float32" and not script.notes:
        form = ", channels_last" if script.precision in AUTOCASTS else ""
        notes.append(f"precision: {script.precision}{form}")
    divided = [p.name for p in spec.phases if p.traits.divides_rate and not p.traits.grouped]
    if environment.workers > 1 and environment.settings.divide_rate:
        if divided:
            notes.append(f"learning rate ÷ {environment.workers} under {', '.join(divided)}")
        if any(p.traits.grouped for p in spec.phases):
            notes.append("learning rate ÷ the number of groups under groups")
    free = any(not p.traits.lockstep for p in spec.phases)
    if free and environment.workers > 1 and not environment.thread:
        notes.append("asynchronous updates depend on timing: this run will not repeat exactly")
    if environment.virtual is not None and environment.workers > 1:
        from phalanx.train.engine.virtual_work import replicas_memory

        taken = replicas_memory(script.models, environment.workers)
        notes.append(f"{environment.workers} replicas take up to {taken} of memory here")
    if emulated := describe_emulation(environment.settings):
        notes.append(f"{mark(emulated)}: {emulated}")
    return notes


def _warm_up() -> None:
    """Load what torch loads on its first backward pass, as part of preparing: this takes a second
    on a slow machine, and would distort a comparison of short trainings."""
    weight = torch.ones(1, requires_grad=True)
    (weight * 1.0).sum().backward()
