"""The parts of a worker, which ``build_worker`` makes."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.train.checkpoint.checkpointing import Checkpointer, Trained
from phalanx.train.checkpoint.resuming import Resumed
from phalanx.train.guards.carried_state import CarriedState
from phalanx.train.guards.same_data import CheckedReaders
from phalanx.train.loop.epoch_figures import Figures
from phalanx.train.loop.evaluation import Evaluator
from phalanx.train.loop.rate_schedules import RateSchedules
from phalanx.train.loop.schedule import Schedule
from phalanx.train.loop.stepper import Stepper
from phalanx.train.loop.stopwatch import Stopwatch
from phalanx.train.loop.training_events import TrainingEvents
from phalanx.train.start.environment import Environment
from phalanx.train.start.lifecycle import Lifecycle
from phalanx.train.start.seed import CommonSeed


@dataclass(frozen=True)
class WorkerParts:
    environment: Environment
    trained: Trained
    schedule: Schedule
    stopwatch: Stopwatch
    lifecycle: Lifecycle
    events: TrainingEvents
    evaluator: Evaluator
    checkpointer: Checkpointer
    figures: Figures
    steps: Stepper
    rates: RateSchedules
    carried: CarriedState | None
    resumed: Resumed | None
    seeds: CommonSeed
    precision: str
    readers: CheckedReaders

    @property
    def channels_last(self) -> bool:
        return self.precision == "bfloat16"
