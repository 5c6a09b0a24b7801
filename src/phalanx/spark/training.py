"""Train on a worker's rows: the loop, for a torch model or for a Keras model."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

import phalanx
from phalanx.adapters.torch_models import as_pairs
from phalanx.core.errors import InputError
from phalanx.data.blocks.arrow import ArrowReader
from phalanx.data.blocks.block import Block, Columns
from phalanx.data.blocks.block_data import BlockData
from phalanx.data.blocks.read import WINDOW_BYTES
from phalanx.spark import building
from phalanx.spark.messages import HELD, KERAS, ROWS, WEIGHTS, WorkerFigures, WorkerRequest
from phalanx.train.api.run import Run
from phalanx.train.figures.evaluation import come_together
from phalanx.train.figures.model_calls import accuracy


def train(request: WorkerRequest) -> tuple[WorkerFigures, bytes]:
    training, source = request.training, request.training.source
    trainee = (TorchTrainee if source.model else KerasTrainee)(request)
    trainee.run.spend("read", request.tasks[request.rank].seconds)
    run, data = trainee.run, _data(request)
    began, seen, total, samples = time.monotonic(), 0, 0.0, 0
    waited: list[float] = []
    for _ in run.epochs(training.epochs):
        seen, total = 0, 0.0
        for features, y in _timed(run.batches(data, batch=training.batch), waited):
            x = building.as_inputs(features, trainee.model)
            try:
                loss, counted = trainee.step(x, y), run.samples
            except Exception as error:
                building.check_misfit(error, source, x, y)
                raise
            seen += counted
            samples += counted
            total += loss * counted
        if any(task.held_out for task in request.tasks):
            _validate(trainee, request)
    seconds = time.monotonic() - began
    # A row of the data, not of a batch: a run resumed at its end has no batch.
    row = next(data.read_block(block) for block in data.blocks if block.home == request.rank)
    first = row[source.features][:1]
    width = trainee.width(building.as_inputs(first.to(run.device), trainee.model))
    figures = WorkerFigures(
        rows=seen, seconds=round(seconds, 3), input_seconds=round(sum(waited), 3),
        samples_per_second=round(samples / seconds, 1),
        loss=total / seen if seen else None, width=width, features=list(first.shape[1:]),
        resumed=request.tasks[0].resume,
    )  # fmt: skip
    return figures, trainee.weights()


def _validate(trainee: TorchTrainee | KerasTrainee, request: WorkerRequest) -> None:
    """Log the figures of the rows that all workers hold out. Collective."""
    run, source, began = trainee.run, request.training.source, time.monotonic()
    if run.engine.lockstep:
        come_together(run.engine)
    sums, files = torch.zeros(3, dtype=torch.float64), Path(request.folder).glob(HELD)
    reader = ArrowReader([*map(str, files)], [source.features, source.label])
    for block in reader.blocks:
        found, most = reader.read(block), request.training.batch
        features, labels = found[source.features], found[source.label]
        for x, y in zip(features.split(most), labels.split(most), strict=True):
            x = building.as_inputs(x.to(run.device), trainee.model)
            sums += torch.tensor([*trainee.judge(x, y.to(run.device)), 1.0]) * len(y)
    loss, accuracy, rows = run.reduce(sums, "sum").tolist()
    run.spend("evaluate", time.monotonic() - began)
    figures = {"validation_loss": loss / rows, "validation_accuracy": accuracy / rows}
    run.log(**{name: value for name, value in figures.items() if value == value})


def _timed(batches: Iterable[Any], waited: list[float]) -> Iterator[Any]:
    """Iterate over ``batches``, and append the seconds of waiting for each to ``waited``."""
    asked = time.monotonic()
    for found in batches:
        waited.append(time.monotonic() - asked)
        yield found
        asked = time.monotonic()


def _data(request: WorkerRequest) -> BlockData:
    source, tasks = request.training.source, request.tasks
    names, rows = [source.features, source.label], sum(sum(task.rows) for task in tasks)
    # The mean over all tasks, so that all workers have the same windows.
    row_bytes = max(1, sum(task.bytes for task in tasks) // max(1, rows))
    return BlockData(
        SparkRows(request, names), window=max(1, WINDOW_BYTES // row_bytes),
        form=lambda found: tuple(found[name] for name in names),
    )  # fmt: skip


class SparkRows:
    """The record batches of all tasks as blocks; only those of this worker's task can be read."""

    def __init__(self, request: WorkerRequest, columns: list[str]) -> None:
        self._rank = request.rank
        self.blocks = [
            Block(f"partition {home}", number, count, home)
            for home, task in enumerate(request.tasks)
            for number, count in enumerate(task.rows)
        ]
        self._file = str(Path(request.folder) / ROWS)
        mine = request.tasks[request.rank].rows
        self._reader = ArrowReader([self._file], columns) if mine else None

    def read(self, block: Block) -> Columns:
        if self._reader is None or block.home != self._rank:
            raise InputError(
                f"worker {self._rank} was to read rows of {block.source}, which it does not have",
                'Use a strategy whose workers read their own rows: strategy="allreduce".',
            )
        found = self._reader.read(Block(self._file, block.number, block.rows))
        for name, column in found.items():
            building.check_numbers(name, column)
        return found


class TorchTrainee:
    def __init__(self, request: WorkerRequest) -> None:
        source = request.training.source
        self.model, self._loss = building.torch_model(source), building.loss_of(source)
        self.run = phalanx.join(self.model, building.optimizer_of(source, self.model))
        self._classes = source.loss in building.CLASS_LOSSES

    @torch.no_grad()
    def judge(self, x: Tensor, y: Tensor) -> tuple[float, float]:
        """Return loss and accuracy (NaN: no classes) of rows that are not trained on."""
        outputs = self.model.eval()(x)
        self.model.train()
        right = accuracy(outputs, y) if self._classes else math.nan
        return float(self._loss(outputs, y)), float(right)

    def step(self, x: Tensor, y: Tensor) -> float:
        outputs = self.model(x)
        error = self._loss(outputs, y)
        self.run.backward(error)
        if self._classes:
            self.run.judge(outputs, y)
        self.run.step()
        return float(error.detach())

    @torch.no_grad()
    def width(self, x: Tensor) -> int:
        found = self.model.eval()(x)  # normalisation must not count the row
        self.model.train()
        return int(found[0].numel())

    def weights(self) -> bytes:
        found = as_pairs(self.model.state_dict()).items()
        return save({name: value.cpu().contiguous().clone() for name, value in found})


class KerasTrainee:
    """Trains by the model's own ``train_step``, loss and optimizer, on Keras' torch backend."""

    def __init__(self, request: WorkerRequest) -> None:
        from phalanx.adapters.keras.optimizers import read_state, rule_of
        from phalanx.adapters.keras.torch_backend import TorchKerasModel
        from phalanx.train.keras.setup import KerasSeeds, check_clipping, check_options
        from phalanx.train.start.environment import detect
        from phalanx.train.worker.build_worker import build_worker

        self._folder, self._done = Path(request.folder), 0
        self.model = building.keras_model(self._folder / KERAS)
        environment = detect()
        check_options(environment, self.model)
        check_clipping(self.model.optimizer, environment)
        mirror = self._mirror = TorchKerasModel(self.model)
        self._rule = rule_of(mirror)
        read_state(mirror, self._rule)
        parts, loop = build_worker(
            environment, mirror.module, self._rule, seeds=KerasSeeds(self.model)
        )
        self.run, self._steps = Run(parts, loop), parts.steps
        self.run.keep(keras=self)
        self._checked = environment.workers == 1

    def state_dict(self) -> dict[str, int]:
        """Return the step of the learning rate's schedule."""
        return {"steps": self._done}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self._done = int(state["steps"])

    def step(self, x: Tensor, y: Tensor) -> float:
        from phalanx.adapters.keras.optimizers import rate_of
        from phalanx.train.keras.loss_check import check_loss

        if not self._checked:
            check_loss(self.model, [(x, y)])
            self._checked = True
        self.model.reset_metrics()  # so that the logs are of this batch alone
        self._mirror.begin_epoch()
        with self._steps.ours:
            logs = self._mirror.gradients((x, y))
        for group in self._rule.param_groups:
            group["lr"] = rate_of(self.model.optimizer, self._done)
        self.run.step(clip=self.model.optimizer.global_clipnorm)
        self._mirror.load()
        self._done += 1
        return float(logs["loss"])

    def judge(self, x: Tensor, y: Tensor) -> tuple[float, float]:
        self._mirror.show()
        self.model.reset_metrics()
        found = self.model.test_on_batch(x, y, return_dict=True)
        right = [v for name, v in found.items() if name.endswith("accuracy")]
        return float(found["loss"]), float(right[0]) if right else math.nan

    @torch.no_grad()
    def width(self, x: Tensor) -> int:
        found: Any = self.model(x, training=False)
        return int(found[0].numel())

    def weights(self) -> bytes:
        self._mirror.show()
        self.model.save(str(self._folder / f"{WEIGHTS}.keras"))
        return (self._folder / f"{WEIGHTS}.keras").read_bytes()
