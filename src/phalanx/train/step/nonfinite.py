"""Counts steps that were refused because a gradient was not finite, and finds bad weights."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import torch
from torch import Tensor, nn

from phalanx.adapters.torch_models import parameters_of
from phalanx.core.errors import NotFinite, PeerLost
from phalanx.observe.events.event_types import StepRefused
from phalanx.sync.state.gradient_values import are_finite, are_sound
from phalanx.sync.strategy import Timing
from phalanx.train.engine.engine import Engine, Script
from phalanx.train.start.environment import Environment
from phalanx.train.step.stopwatch import Stopwatch

MOST_IN_A_ROW = 10
SOUND = "phalanx resume continues from the last checkpoint whose weights are finite"
_CAUSES = "Look for NaN in the data, a learning rate that is too high, or log(0)"


class NonFinite:
    """Counts refused steps, equally on all workers that step together, so that all end together."""

    def __init__(self, environment: Environment, engine: Engine, stopwatch: Stopwatch) -> None:
        self._environment, self._engine, self._stopwatch = environment, engine, stopwatch
        self._most = 1 if environment.settings.on_nonfinite == "stop" else MOST_IN_A_ROW
        self.steps = self.in_a_row = 0
        """How many steps were taken or refused, and how many refused since one was taken."""
        self.scale = 1.0
        """The scale of a ``GradScaler``; above 1, gradients overflow now and then by design."""

    def stepped(self, index: int, timing: Timing) -> None:
        self.steps += index >= 0
        if timing.refused is None:
            self.in_a_row = 0 if index >= 0 else self.in_a_row
            return
        words = self._words(index, timing.refused)
        rank, whose = self._environment.rank, timing.refused
        if rank == whose[0] if whose else self._engine.leads:
            self._tell(words, whose)
        if self.scale > 1.0:
            return
        self.in_a_row += 1
        if self.in_a_row >= self._most:
            self._stopwatch.writer.flush()
            if self._engine.lockstep and not self._engine.apart:
                with suppress(PeerLost):
                    self._engine.barrier()  # the worker that reports it may end last
            count = "a step was" if self._most == 1 else f"{self._most} steps in a row were"
            raise NotFinite(
                f"{count} not finite, the last at step {self.steps} ({words}); the weights are "
                f"those from before. {_CAUSES}"
            )

    def _words(self, index: int, whose: Sequence[int]) -> str:
        """Say what was not finite, such as ``the loss of worker 1``."""
        if not whose:
            return "the sum of all gradients" if index >= 0 else "the mean of all weights"
        what = "weights" if index < 0 else "scaled gradient" if self.scale > 1.0 else "gradient"
        if whose[0] == self._environment.rank and index >= 0 and self._stopwatch.lost_its_loss():
            what = "loss"
        others = f" and {len(whose) - 1} more" if len(whose) > 1 else ""
        return f"the {what} of worker {whose[0]}{others}"

    def _tell(self, words: str, whose: Sequence[int]) -> None:
        stopwatch, rank = self._stopwatch, self._environment.rank
        stopwatch.writer.emit(
            StepRefused(
                time=stopwatch.clock.now(), rank=rank, epoch=stopwatch.epoch, step=self.steps,
                what=words, workers=list(whose),
            )
        )  # fmt: skip
        if not self._environment.launched:  # no controller shows it
            told = f"phalanx: step {self.steps} was skipped: {words} is not finite"
            print(told, file=sys.stderr, flush=True)


def skip_on_device(script: Script, engine: Engine, say: Callable[[str], None]) -> None:
    """Let the GPU skip steps, if the host need not know at once, so that the host does not wait."""
    environment, optimizers = script.environment, script.optimizers
    chosen = environment.settings
    asks = chosen.profile is not None or chosen.on_nonfinite == "stop"
    if environment.device.type == "cuda" and engine.workers == len(optimizers) == 1 and not asks:
        engine.exchange.skip_on_device(optimizers[0], say)


def bad_weights(
    models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
) -> str | None:
    """Describe which trained weights are not finite; ``None`` if all are finite."""
    trained = [p.detach() for p in parameters_of(optimizers)]
    if not all(map(are_sound, _by_device(trained))):
        return "the weights are not finite"
    # Only statistics of batches are checked: a mask may well be infinite.
    statistics = {
        name: buffer
        for model in models
        for name, buffer in model.named_buffers()
        if name.rpartition(".")[2] in ("running_mean", "running_var")
    }
    if all(map(are_finite, _by_device(statistics.values()))):
        return None
    name = next(name for name, buffer in statistics.items() if not are_finite([buffer]))
    return f"{name} is not finite: a batch had values that are not finite"


def _by_device(tensors: Iterable[Tensor]) -> list[list[Tensor]]:
    """Group the tensors by device, so that each device is waited for once."""
    found: dict[torch.device, list[Tensor]] = {}
    for tensor in tensors:
        found.setdefault(tensor.device, []).append(tensor)
    return list(found.values())
