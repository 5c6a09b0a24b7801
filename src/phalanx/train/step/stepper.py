"""Turns losses into updated parameters: takes steps, and refuses invalid ones."""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from phalanx.core.errors import InputError, NotFinite, RunStopped
from phalanx.sync.state.gradients import get_grad, set_grad
from phalanx.sync.strategy import Timing
from phalanx.train.engine.engine import Engine, Script
from phalanx.train.engine.script_optimizers import Inside, StepGuard
from phalanx.train.step.clipping import Clipping, watch_clipping
from phalanx.train.step.grad_scaler import Scaling, refuse_hooks
from phalanx.train.step.gradient_reads import GradientReads
from phalanx.train.step.gradient_weight import GradientWeight
from phalanx.train.step.loss_kind import LossWatch, SumLossError
from phalanx.train.step.nonfinite import NonFinite
from phalanx.train.step.stopwatch import Stopwatch

Look = Callable[[Tensor, Tensor | None], None]
"""Called with each loss of a backward pass, and the factor of its gradient."""


class Stepper:
    """Takes the steps of one training: backward passes, exchanges, updates."""

    def __init__(
        self,
        script: Script,
        engine: Engine,
        weight: GradientWeight,
        stopwatch: Stopwatch,
        losses: LossWatch,
    ) -> None:
        models, optimizers = script.models, script.optimizers
        self._engine, self._exchange = engine, engine.exchange
        self._models, self._optimizers = models, optimizers
        self._weight, self._stopwatch, self._losses = weight, stopwatch, losses
        nonfinite = self._nonfinite = NonFinite(script.environment, engine, stopwatch)
        self.ours = Inside()
        """Entered while Phalanx, not the script, steps, saves, loads or reads gradients."""
        self._guard = StepGuard(optimizers, engine.optimizers, self.ours)
        self._reads = GradientReads(script, engine, weight, self.ours)
        self._clipping = Clipping(
            list(optimizers), engine, weight, self.ours, lambda norm: stopwatch.sums.add_norm(norm)
        )
        watch_clipping(self._clipping)
        self._scaling = Scaling(optimizers, self.step, nonfinite, self._weight.loss_scale.scaler)
        watch_backward(self._see_backward)
        self.in_batch = self._looked = False
        self.losses = 0
        """The number of losses that had a backward pass."""
        self._fed = self._over = False
        """Whether batches come from ``run.batches``; whether training is over."""
        self._clip: float | None = None
        self.not_finite: NotFinite | None = None
        """The error of a refused step that was found where no error can be raised."""
        self.keeps_gradients = False
        """Whether gradients stay after a step, until the script zeroes them."""
        self.watchers: list[Callable[[], None]] = []
        """Called after each step."""
        self.refused: InputError | RunStopped | None = None
        """An error that the script may have caught and ignored, or that could not reach it."""
        device, timed = script.environment.device, engine.workers > 1 or engine.timed
        self._device, self._waits_for_device = device, timed and device.type == "cuda"
        """Whether to wait until a GPU has computed the gradient. Otherwise its speed would be
        measured wrongly, and the exchange would wait anyway."""

    def open(self) -> None:
        """Begin a pass over the data."""
        if self._over:
            raise _over()
        self._fed = True

    def backward(self, error: Tensor) -> None:
        """Do ``error.backward()``; the report shows the value of ``error`` as training loss."""
        if not self._fed:
            raise _unfed()
        if self._weight.loss_scale.scaler is not None:
            refuse_hooks(self._models, self._optimizers)
        self._looked = True
        try:
            self._look_at(error)
            self._weight.loss_scale.scale(error).backward()
        finally:
            self._looked = False

    def _look_at(self, error: Tensor) -> None:
        """Look at a loss that is about to go backwards."""
        self.losses += 1
        engine, samples, losses = self._engine, self._stopwatch.batch_samples, self._losses
        seen = error.grad_fn is not None and samples > 0 and losses.looks(engine.workers)
        try:
            counted = losses.weight_of(error, samples) if seen else None
        except InputError as refused:
            self.refused = refused
            raise
        self._stopwatch.loss(error, summed=losses.sums)
        if losses.sums and self._weight.count_sums(engine) and engine.goes_ahead:
            self._exchange.begin_batch(self._weight.scales)
        if losses.sums or not seen or engine.workers == 1:
            return
        if engine.parties == 1 or not self._weight.count_as(counted):
            return
        if engine.goes_ahead:
            self._exchange.begin_batch(self._weight.scales)

    def _see_backward(self, error: Tensor, factor: Tensor | None) -> None:
        """Note that the script called ``error.backward()`` itself."""
        if not self.in_batch or self._looked:
            return
        if self._weight.loss_scale.scaler is not None:
            raise _not_scaled()
        if error.numel() == 1:
            self._look_at(error)
            return
        samples = self._stopwatch.batch_samples
        means = self._engine.workers > 1 and not self._losses.sums and samples > 1
        if means and factor is not None:
            _check_factors(factor, samples)

    def step(
        self,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        clip: float | None = None,
        weight: float | None = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        index = 0
        if optimizer is not None and optimizer is not self._optimizers[0]:
            index = self._index(optimizer)
        if self._over:
            raise _over()
        if weight is None and not self._fed:
            raise _unfed()
        chosen = self._scaling.chosen(scaler) if self._scaling.own else scaler
        if self._weight.loss_scale.scaler is not None:
            if self._weight.loss_scale.is_missing:
                raise _not_scaled()
            self._weight.loss_scale.spoil()
        if self._waits_for_device:
            torch.cuda.current_stream(self._device).synchronize()
        self._exchange.worked(*self._stopwatch.worked())
        ready = self._stopwatch.clock.now()
        if self._engine.optimizers.outgrown():
            self.follow_parameters()
        scale, weight = self._weight.of_step(index, weight)
        agreed = index in self._weight.agreed and scaler is None
        clipped = bool(self._clipping.clipped) and self._clipping.stands(index)
        clipped = clipped and chosen is None and clip is None
        kept = []
        for group in self._optimizers[index].param_groups if self.keeps_gradients else ():
            for parameter in group["params"]:
                if (gradient := get_grad(parameter)) is not None:
                    kept.append((parameter, gradient))
        judge = chosen is not None and chosen.is_enabled()
        if judge:
            self.judge_pending()
        with self.ours:
            factor = 1.0 if chosen is None else self._scaling.before_step(index, chosen)
            self._engine.directives.look()
            timing = self._exchange.step(
                index, scale, weight, clip, agreed=agreed, clipped=clipped, judge=judge
            )
            if chosen is not None or self._scaling.scalers:
                self._scaling.on_step(index, timing)
                self._scaling.after_step(chosen)
            elif timing.refused is not None or self._nonfinite.in_a_row:
                self._nonfinite.stepped(index, timing)
            elif timing.judged:
                self._nonfinite.steps += 1
        self._losses.check()
        self._stopwatch.stepped(ready, timing, factor)
        self._weight.stepped(index)
        for parameter, gradient in kept:
            set_grad(parameter, gradient)
        self._clip = clip
        for stepped in self.watchers:
            stepped()

    def note(self, known: torch.optim.Optimizer | None = None) -> None:
        """Count a step that the script has made itself as one of this training."""
        self._exchange.worked(*self._stopwatch.worked())
        ready = self._stopwatch.clock.now()
        self._engine.directives.look()
        self._stopwatch.stepped(ready, self._exchange.note())
        if known is not None:
            self._weight.stepped(self._index(known))
        for stepped in self.watchers:
            stepped()

    def _index(self, optimizer: torch.optim.Optimizer) -> int:
        for i, known in enumerate(self._optimizers):
            if known is optimizer:
                return i
        raise InputError(
            "this optimizer was not given to phalanx.join", "phalanx.join([G, D], [g, d])"
        )

    def agree_on_pending(self) -> None:
        """Agree on accumulated gradients that no step used before the training ends: they become
        those of the whole batch, in case the script continues with them. Collective."""
        engine, weight = self._engine, self._weight
        if not weight.pending or engine.parties == 1 or not engine.lockstep:
            return
        with self.ours:
            for index in {*range(len(self._optimizers))} - weight.agreed:
                self._exchange.share_gradients(index, *weight.of_step(index))

    def step_before_switch(self) -> None:
        """Step with the gradients that were accumulated under the old strategy."""
        if self._weight.pending and len(self._optimizers) == 1:
            kept, self.keeps_gradients = self.keeps_gradients, False  # they have been used
            self.step(clip=self._clip)
            self.keeps_gradients = kept

    def end_round(self) -> None:
        """End a round: workers that train apart come together."""
        began, total = self._stopwatch.clock.now(), Timing()
        for timing in self._exchange.end_round():
            total.send += timing.send
            total.wait += timing.wait
            total.update += timing.update
            total.settle += timing.settle
            total.bytes_sent += timing.bytes_sent
            self._scaling.on_step(-1, timing)
        if self._engine.workers > 1:
            self._stopwatch.agreed(began, total)

    def judge_pending(self) -> None:
        """Find out which steps a GPU has skipped."""
        for timing in self._exchange.settle():
            self._scaling.on_step(0, timing)
            self._stopwatch.judged(timing)

    def end_pass(self) -> None:
        """Do ``judge_pending`` where a generator may be closed, and no error can be raised."""
        self.in_batch = False
        try:
            self.judge_pending()
        except NotFinite as error:
            self.not_finite = error

    def follow_parameters(self) -> None:
        with self.ours:
            self._engine.optimizers.follow_parameters()
        self._reads.watch()

    def leave_scalers(self) -> None:
        """Let the script's gradient scalers step its optimizers themselves again."""
        self._scaling.end()

    def close(self) -> None:
        """End the training; several workers take no steps any more."""
        self._over = self._engine.workers > 1
        self._weight.loss_scale.unscale()  # the script may go on with gradients that were left
        self._guard.end()
        self._reads.end()
        watch_backward(None)
        watch_clipping(None)
        self._scaling.end()


def _unfed() -> InputError:
    return InputError(
        "run.step was called without a batch from run.batches, so its weight is unknown",
        "Loop over run.batches(train, batch=128); or, for batches of your own, call "
        "error.backward() and run.step(weight=its part of the global batch).",
    )


def _not_scaled() -> InputError:
    return InputError(
        "the script computes gradients without run.backward(error): in float16 small ones vanish",
        "Call run.backward(error), which scales the loss, or use --precision bfloat16.",
    )


def _over() -> InputError:
    return InputError(
        "this training has ended: the workers do not step together any more",
        "Train inside the loop over run.epochs, or join again.",
    )


def _check_factors(factor: Tensor, samples: int) -> None:
    """Refuse factors of single samples' losses, ``losses.backward(factor)``, that make a sum."""
    if factor.ndim == 0 or factor.shape[0] != samples:
        return
    first = float(factor.flatten()[0])
    known = (0.0, 1.0 / samples, 1.0 / factor.numel())
    if bool((factor == first).all()) and not any(math.isclose(first, k) for k in known):
        raise SumLossError("backward of a vector", whole=False)


class _Current(threading.local):
    look: Look | None = None


_current = _Current()


def watch_backward(look: Look | None) -> Look | None:
    """Call ``look`` for each loss of this thread's backward passes, with its factor, also in
    ``loss.backward()``, which calls ``torch.autograd.backward``. Return the previous ``look``."""
    before, _current.look = _current.look, look
    plain: Any = torch.autograd.backward
    if look is None or hasattr(plain, "_phalanx_watches"):
        return before

    @functools.wraps(plain)
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        look = _current.look
        if look is not None and grad_tensors is None and isinstance(tensors, Tensor):
            look(tensors, None)
        elif look is not None:
            losses = [tensors] if isinstance(tensors, Tensor) else tensors
            many = grad_tensors is not None and not isinstance(grad_tensors, Tensor)
            factors = grad_tensors if many else [grad_tensors] * len(losses)
            for loss, factor in zip(losses, factors, strict=False):
                if isinstance(loss, Tensor):
                    look(loss, factor)
        return plain(tensors, grad_tensors, *args, **kwargs)

    setattr(backward, "_phalanx_watches", True)  # noqa: B010
    setattr(torch.autograd, "backward", backward)  # noqa: B010
    return before
