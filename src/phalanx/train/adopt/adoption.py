"""``Adoption``: one worker's training with others, by a script that never calls Phalanx.

Optimizers are remembered as they are made. When the script begins to go through a ``DataLoader``
while its models train, the worker joins with the models that own the optimizers' parameters; the
loader's batches are shared out in the loader's own order, and ``optimizer.step()`` becomes the
exchange. Every other pass over data is an evaluation, of which each worker sees everything.
"""

from __future__ import annotations

import dataclasses
import gc
import multiprocessing
import weakref
from collections.abc import Callable, Iterator, Sequence
from operator import length_hint
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, SequentialSampler

from phalanx.adapters.torch_models import parameters_of
from phalanx.core.context import call_at_end
from phalanx.core.errors import InputError
from phalanx.core.settings import RunSettings
from phalanx.sync.state.gradients import get_grad
from phalanx.train.adopt.adopted_training import AdoptedTraining, Drawn
from phalanx.train.adopt.found_models import (
    ALONE,
    data_of,
    describe,
    models_of,
    stand_in_for,
    stray_step,
)
from phalanx.train.adopt.libraries import library_trains, look_for_libraries
from phalanx.train.adopt.loader_pass import LoaderDraws, is_ours
from phalanx.train.adopt.script_length import loop_may_train, passes_of
from phalanx.train.files.calling_code import is_peek, script_frame
from phalanx.train.proof.checks import Checks
from phalanx.train.start.seed import Streams
from phalanx.train.whole.calls import share_calls
from phalanx.train.whole.plain_pass import PlainPass
from phalanx.train.whole.view_trial import ViewChoice, ViewTrial
from phalanx.train.whole.whole_engine import WholeEngine
from phalanx.train.worker.build_worker import build_worker

_DECLARED = {None: "auto", "mean": "part", "sum": "sum"}
"""The loss kind for each ``--loss``; ``mean``: any function of a worker's part of the batch."""


class Adoption:
    def __init__(self, chosen: RunSettings, workers: int) -> None:
        self._chosen, self._workers = chosen, workers
        self.profiles = chosen.profile is not None
        """Whether the script is only measured."""
        self._made: list[weakref.ref[torch.optim.Optimizer]] = []
        self._training: AdoptedTraining | None = None
        self._joining = self._made_since = False
        self._settled = 0
        self._draws = LoaderDraws()
        self._view = ViewChoice(chosen, workers)
        self._alone = workers == 1 and chosen.virtual is None and not chosen.explain
        self._stand_in: torch.optim.Optimizer | None = None
        self._checks = Checks(chosen)
        self.streams = Streams()

    @property
    def _counts_steps(self) -> bool:
        """Whether steps are counted in a training whose batches come from no loader."""
        return self._view.whole or (self._alone and not self.profiles)

    @property
    def _child(self) -> Checks | ViewTrial | None:
        """The check or trial that this process was forked for, if it is a child of a worker."""
        return self._checks if self._checks.is_child else self._view.trial

    def joins_itself(self) -> None:
        """Note that the script calls Phalanx itself."""

    def made(self, optimizer: torch.optim.Optimizer) -> None:
        """Remember an optimizer that the script has made."""
        if not self._joining:
            look_for_libraries()
            self._made.append(weakref.ref(optimizer))
            self._made_since = True

    def before_training(self, _loss: torch.Tensor, _factor: torch.Tensor | None) -> None:
        """Note that the script calls ``backward`` outside of a training."""
        if self._child is not None:
            return
        if self._counts_steps and not self._optimizers():
            self._stand_in = stand_in_for(_loss)
        if self._workers > 1 and not self._optimizers():
            raise InputError(
                "the script computes gradients, but has made no optimizer of torch.optim",
                f"Phalanx cannot see how the parameters are updated: use an optimizer, {ALONE}",
            )
        if self._training is None:
            training = self._train_own_batches()
            if training is not None and training.own and self._stand_in is not None:
                training.own.follow_losses(self._stand_in)

    # -- steps -------------------------------------------------------------------------------

    def passes_on(self, _optimizer: torch.optim.Optimizer) -> bool:
        """Whether a step is passed on unchanged: Phalanx itself makes it, or is joining."""
        training = self._training
        return self._joining or (training is not None and bool(training.parts.steps.ours))

    def step(
        self,
        optimizer: torch.optim.Optimizer,
        plain: Callable[..., Any],
        closure: Callable[[], Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        training = self._training
        if self._child is not None:
            return self._child.step(plain, optimizer, closure, **kwargs)
        given = () if closure is None else (closure,)
        known = training is not None and training.knows(optimizer) and training.awaits_step
        if self._counts_steps and (given or kwargs or not known):  # gradients are of whole batches
            return self._step_alone(optimizer, plain, *given, **kwargs)
        if training is None or not known:
            idle = closure is None and all(get_grad(p) is None for p in parameters_of([optimizer]))
            if idle and training is not None:
                return None  # without gradients there is nothing to do
            # A profile is for several workers, so it refuses this too; such a loop may never end.
            shared = self._workers > 1 or (self.profiles and training is None)
            if shared and not idle:
                raise stray_step(optimizer, inside=training is not None and training.awaits_step)
            return plain(optimizer, *given, **kwargs)
        if closure is not None and isinstance(optimizer, torch.optim.LBFGS):
            if self._workers == 1:
                return plain(optimizer, closure)
            raise InputError(
                "LBFGS needs several evaluations per step, which workers cannot share",
                f"Use another optimizer, {ALONE}",
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if training.sees_no_loss and any(
            (g := get_grad(p)) is not None and g.any() for p in parameters_of([optimizer])
        ):
            raise InputError(
                "the script called optimizer.step() without backward(): its gradients (from "
                "torch.autograd.grad?) are only of each worker's part of the batch",
                f"Call loss.backward(), {ALONE}",
            )
        training.parts.steps.step(optimizer)
        training.end_if_done()
        return loss

    def _step_alone(
        self, optimizer: torch.optim.Optimizer, plain: Callable[..., Any], *given: Any, **kw: Any
    ) -> Any:
        """Make a step outside of a pass, with a closure, or of an optimizer that was made later."""
        training = self._training or self._train_own_batches()
        if self._child is not None:  # forked just now
            return self.step(optimizer, plain, *given, **kw)
        if training is None or training.own is None or training.parts.lifecycle.over:
            return plain(optimizer, *given, **kw)
        knows, found = training.knows(optimizer), None
        made = bool(given or kw) or not knows or training.under_way
        if made:
            with training.parts.steps.ours:
                found = plain(optimizer, *given, **kw)
        if training.under_way:
            training.parts.steps.note(optimizer if knows else None)
        else:
            training.own.step(optimizer, made=made)
            if len(training.optimizers) == 1:  # with more, this may be the middle of a batch
                self._checks.fork()
        return found

    def _train_own_batches(self) -> AdoptedTraining | None:
        """Join a training whose batches come from no loader; ``None`` if there is none yet."""
        optimizers = self._optimizers()
        if not self._counts_steps or not optimizers or self._joining:
            return None
        if self._chosen.resume is not None:
            raise InputError(
                "the script makes its batches itself, so its place in the loop cannot be restored",
                "Start a new run; a script that loads checkpoints itself can continue from the "
                "one in the run's folder.",
            )
        self._training = self._join(
            "batches of its own making", self._models(optimizers), optimizers, None, None
        )
        if self._chosen.epochs:
            say_once = self._training.parts.figures.say_once
            say_once("--epochs has no effect: the script has no epochs")
        if not self._stand_in and self._training.is_checked() and self._checks.fork():
            return None
        if self._training.own is not None:
            self._training.own.enter()
        return self._training

    # -- passes ------------------------------------------------------------------------------

    def iterate(self, loader: DataLoader[Any], plain: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        """Return an iterator in place of the script's own ``iter(loader)``."""
        if is_ours(loader):
            return plain()
        if self._checks.is_child:
            return self._go_on(loader, plain)
        if self._view.trial is not None:
            return self._view.trial.other_pass(loader, plain)
        if not self.trains_on(loader):
            return self._whole(self._draws.as_alone(loader, plain), loader)
        training = self._training
        if training is not None and training.is_within_another(loader):
            return plain()
        if training is not None and self._made_since and not training.is_of(self._optimizers()):
            training.leave_pass()
            self._end()  # or it would keep optimizers that the script has dropped
            training, self._settled = None, 0
        self._made_since = False
        optimizers = self._optimizers()
        models = self._models(optimizers)
        forkable = self._checks.before_joining() and not multiprocessing.active_children()
        chosen = training or self._view.choose(loader, plain, models, forkable=forkable)
        if isinstance(chosen, Iterator):
            return chosen
        if self._view.whole and self._chosen.resume is None:
            if training is not None:
                training.leave_pass()
            return self._train(loader, models, optimizers, PlainPass.of(loader, plain))
        return self._train(loader, models, optimizers)

    def _go_on(self, loader: DataLoader[Any], plain: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        training, trains = self._training, self.trains_on(loader)
        if training is None or (trains and not training.is_of(self._optimizers())):
            self._checks.end(broken=False)  # another training begins
        if training is None or training.is_whole:
            return plain()
        if not trains:
            return self._in_common(self._draws.as_alone(loader, plain))
        return training.alone_again(loader, self._draws.order_of(loader))

    def trains_on(self, loader: DataLoader[Any]) -> bool:
        """Whether the script seems about to train on the batches of ``loader``. Wrong guesses are
        refused: a pass without training at its end, a step outside of a pass at once."""
        optimizers, frame = self._optimizers(), script_frame()
        if not optimizers or not torch.is_grad_enabled() or is_peek(frame):
            return False
        known = library_trains(frame)
        if known is not None:
            return known
        if not loop_may_train(frame):
            return False
        if any(model.training for model in self._models(optimizers)):
            return True
        # A script may train in eval mode too: on data that it shuffles, or trained on so before.
        if self._training is not None:
            return any(known is loader for known in self._training.in_eval_mode)
        return not isinstance(loader.sampler, SequentialSampler)

    def _models(self, optimizers: Sequence[torch.optim.Optimizer]) -> Sequence[nn.Module]:
        training = self._training
        if training is not None and training.is_of(optimizers):
            return training.models
        return models_of(optimizers)

    @property
    def in_last_batch(self) -> bool:
        """Whether this worker's present batch is the last one of its pass."""
        return self._training is not None and self._training.in_last_batch

    def _whole(self, plain: Callable[[], Iterator[Any]], loader: DataLoader[Any]) -> Iterator[Any]:
        """Yield all of the data, in the same order and with the same noise on every worker."""
        training = self._training
        if training is None:
            return plain()
        training.end_if_done(waits=False)
        if training.under_way and training.parts.trained.engine.lockstep:
            return self._in_common(plain)
        if self.profiles:
            return iter(training.parts.trained.engine.some_of(plain(), length_hint(loader)))
        if training.under_way:
            return plain()  # free-running workers evaluate unequally often inside a pass
        return training.timed(plain())

    def _in_common(self, plain: Callable[[], Iterator[Any]]) -> Iterator[Any]:
        with self.streams.in_common():
            yield from plain()

    def _train(
        self,
        loader: DataLoader[Any],
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        drawn: Drawn | None = None,
    ) -> Iterator[Any]:
        if drawn is not None and not len(drawn.order):
            return iter(())
        if self._training is not None:
            self._training.leave_pass()
            self._training.end_if_done(waits=False)
            self._training.rewind()
        drawn_from = torch.get_rng_state()
        drawn = drawn or self._draws.order_of(loader)
        training = self._training
        joins = training is None or not training.is_of(optimizers)
        if training is None or joins:
            self._end()
            passes = passes_of(script_frame())
            data = data_of(loader)
            training = self._join(data, models, optimizers, drawn.batch, passes)
            self._training = training
        training.order.drawn_from = drawn_from
        if not any(model.training for model in models):
            training.in_eval_mode.add(loader)
        checked = joins and training.is_checked()
        if isinstance(drawn, PlainPass):
            alone = checked and self._checks.fork()
            drawn.start()
            if alone:
                return drawn.rest()
        return training.through(loader, drawn)

    def _optimizers(self) -> list[torch.optim.Optimizer]:
        """Return the optimizers that can train something, in the order in which they were made. Of
        two that share a parameter the newer one counts. Garbage is collected first, so that
        optimizers that the script has dropped are gone on all workers."""
        if len(self._made) > self._settled:
            new = any(ref() is not None for ref in self._made[self._settled :])
            if new and self._made[1:]:
                gc.collect()
            self._made = [ref for ref in self._made if ref() is not None]
            self._settled = len(self._made)
        found: list[torch.optim.Optimizer] = []
        taken: set[int] = set()
        for optimizer in reversed([o for ref in self._made if (o := ref()) is not None]):
            parameters = parameters_of([optimizer])
            own = {id(p) for p in parameters}
            if not own & taken and any(p.requires_grad for p in parameters):
                found.insert(0, optimizer)
            taken |= own
        return found

    def _join(
        self,
        data: str,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        batch: int | None,
        passes: int | None,
    ) -> AdoptedTraining:
        self._joining = True
        self._checks.before_joining()
        try:
            device = parameters_of(optimizers)[0].device
            environment = dataclasses.replace(self._view.environment(), device=device)
            whole = self._view.whole
            parts, loop = build_worker(
                environment, models, optimizers, loss=_DECLARED[self._chosen.loss],
                seeds=self.streams,
                notes=describe(
                    models, optimizers, data, batch, passes, self._workers,
                    whole=whole, slower=self._view.slower,
                ),
                whole=whole,
            )  # fmt: skip
            loop.adopt(self._chosen.epochs or passes)
            call_at_end(self._end_at_exit)
            # With a profile or whole batches, work after the last pass counts as well.
            known = None if self.profiles or whole else passes
            engine = parts.trained.engine
            if isinstance(engine, WholeEngine):
                saved = (parts.resumed.private or {}) if parts.resumed else {}
                share_calls(engine.shared_calls(parts.figures.say_once, saved))
            return AdoptedTraining(parts, loop, known, self.streams, self._checks)
        finally:
            self._joining = False

    def _end(self) -> None:
        """End the training: the script has ended, or trains something else."""
        if self._training is not None:
            share_calls(None)
            training, self._training = self._training, None
            training.end()

    def _end_at_exit(self) -> None:
        if (training := self._training) is not None:
            try:
                self._end()
            except InputError as error:  # from a check that ends only now
                training.parts.lifecycle.fail(str(error), error.exit_code)
