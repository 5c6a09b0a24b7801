"""Training with an adopted script that has joined: the passes over its data, and the end."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data import DataLoader
from torch.utils.hooks import RemovableHandle

from phalanx.adapters.torch_models import parameters_of
from phalanx.core.context import be_advised_by
from phalanx.core.errors import InputError, NotFinite, PeerLost, RunStopped
from phalanx.data.reader import Reader
from phalanx.train.adopt.found_models import (
    OrderState,
    advice_on_skipped,
    keepers_of,
)
from phalanx.train.adopt.loader_pass import ComparedOrders, LoaderPass, alone_pass, read_by_number
from phalanx.train.adopt.script_length import has_left_a_loop, may_have_failed, needs_equal_batches
from phalanx.train.checkpoint.kept_state import ORDER, unpack
from phalanx.train.loop.segments import WorkerParts
from phalanx.train.loop.training_loop import TrainingLoop
from phalanx.train.proof.checks import Checks
from phalanx.train.start.seed import Streams
from phalanx.train.whole.plain_pass import OwnBatches, PlainPass

COUNTED = (
    "the script may leave its loop early, or a library counts its batches: so each worker gets an "
    "equal part of each batch, whatever its speed"
)


Drawn = LoaderPass | PlainPass


class AdoptedTraining:
    """An adopted training that has joined: what is trained, and the passes over its data."""

    def __init__(
        self,
        parts: WorkerParts,
        loop: TrainingLoop,
        passes: int | None,
        streams: Streams,
        checks: Checks,
    ) -> None:
        self.parts, self._streams, self._checks = parts, streams, checks
        self.models, self.optimizers = parts.trained.models, list(parts.trained.optimizers)
        self._loop, self._left, self._seed = loop, passes, parts.environment.settings.seed
        self._checked = weakref.WeakSet[DataLoader[Any]]()
        """Loaders whose data were compared between workers; a script may make one in each epoch."""
        self._loader: weakref.ref[DataLoader[Any]] | None = None
        self._pass: weakref.ref[AdoptedPass] | None = None
        """The present pass. Only the script's loop holds it, so a ``break`` ends it at once."""
        self.in_eval_mode = weakref.WeakSet[DataLoader[Any]]()
        """Loaders that were trained on although the models were in eval mode."""
        self._orders, self._passes = ComparedOrders(parts.trained.engine), 0
        self._unmet: RemovableHandle | None = None
        """The hook by which this worker meets the others after they have all left a pass early."""
        engine = parts.trained.engine
        self.own = OwnBatches(parts, loop) if engine.workers == 1 else None
        """Counts steps outside of any pass, if this worker is alone."""
        self.is_whole = engine.copies > 1
        """Whether every worker sees whole batches."""
        self.order = OrderState(whole=self.is_whole)
        self.order.left.update(self._saved_order().get("left", {}))
        parts.trained.keepers.update(keepers_of(self.optimizers))
        parts.trained.keepers[ORDER] = self.order
        if parts.resumed is not None:
            be_advised_by(lambda error: "" if parts.steps.losses else advice_on_skipped(error))
            parts.figures.say_once(
                "resumed: the script runs from its start, and the epochs before the checkpoint are "
                "skipped; its own variables start with their first values"
            )

    def rewind(self) -> None:
        """Set torch's random numbers so that a resumed pass draws the same order again."""
        alone = self.parts.trained.engine.workers == 1
        if alone and self._loop.resumes_inside() and (saved := self._saved_order()):
            torch.set_rng_state(saved["drawn_from"])

    def _saved_order(self) -> dict[str, Any]:
        resumed = self.parts.resumed
        kept = {} if resumed is None else resumed.manifest.other.get("state", {})
        return {} if resumed is None else unpack(kept.get(ORDER, {}), resumed.shared)

    @property
    def can_fork(self) -> bool:
        """Whether a child process can be forked: a forked process cannot use a GPU."""
        environment = self.parts.environment
        cpu = environment.device.type == "cpu" and not torch.cuda.is_initialized()
        return cpu and not environment.thread

    def parameter_names(self) -> list[str]:
        """Names of the parameters that the optimizers were given, in their order."""
        known = {id(p): n for m in self.models for n, p in m.named_parameters()}
        return [known.get(id(p), "a parameter") for p in parameters_of(self.optimizers)]

    def is_checked(self) -> bool:
        """Whether some steps are also done by one process, to be compared."""
        return self._checks.begin(self.parts, self)

    def go_alone(self) -> None:
        """Go on alone, in a child process. Holding the present pass keeps it from being closed."""
        self._kept = self._pass and self._pass()

    def alone(self, loader: DataLoader[Any], drawn: Drawn, given: int) -> Iterator[Any]:
        """Yield the batches of the rest of a pass, in a child."""
        if isinstance(drawn, PlainPass):
            return drawn.rest()
        reader = read_by_number(loader, self._seed, alone=True)
        return alone_pass(reader, drawn, self._passes - 1, given, self._checks, self._streams)

    def alone_again(self, loader: DataLoader[Any], drawn: Drawn) -> Iterator[Any]:
        """Yield the batches of another pass, in a child."""
        self._passes += 1
        return self.alone(loader, drawn, 0)

    @property
    def under_way(self) -> bool:
        """Whether the script is inside a pass."""
        return self._pass is not None

    @property
    def in_last_batch(self) -> bool:
        return self._loop.in_last_batch

    @property
    def sees_no_loss(self) -> bool:
        """Whether no loss has gone backwards in the present pass."""
        begun = self._pass() if self._pass is not None else None
        return begun is not None and begun.untrained

    def knows(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(known is optimizer for known in self.optimizers)

    def is_of(self, optimizers: Sequence[torch.optim.Optimizer]) -> bool:
        same = len(optimizers) == len(self.optimizers) and all(map(self.knows, optimizers))
        return same and not self.parts.lifecycle.over

    def through(self, loader: DataLoader[Any], drawn: Drawn) -> Iterator[Any]:
        if self.parts.steps.refused is not None:
            raise self.parts.steps.refused
        self._meet_those_who_left()
        self._passes += 1
        if isinstance(drawn, LoaderPass):
            self._orders.compare(self._passes, drawn)
            if self._passes in self.order.left:  # left before the checkpoint: no batches now
                drawn.own.leave(self.order.left[self._passes])
        engine = self.parts.trained.engine
        counted = engine.workers > 1 and needs_equal_batches(sys._getframe())
        if counted and not engine.lockstep:
            self.parts.figures.say_once(COUNTED)
        reader: Reader = drawn if isinstance(drawn, PlainPass) else self._reader(loader)
        batches = self._loop.through_adopted(reader, drawn.order, drawn.batch, counted=counted)
        self._loader = weakref.ref(loader)
        begun = AdoptedPass(self, batches, drawn, counted=counted)
        self._pass = weakref.ref(begun)
        self._streams.enter_pass()
        return CheckedPass(begun, self._checks, partial(self.alone, loader, drawn))

    def timed(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of an evaluation, whose seconds count as such."""
        clock = self.parts.stopwatch.clock
        began = clock.now()
        try:
            yield from batches
        finally:
            self.parts.lifecycle.spend("evaluate", clock.now() - began)

    def is_within_another(self, loader: DataLoader[Any]) -> bool:
        """Whether the script reads ``loader`` inside its loop over another loader."""
        known = self._loader() if self._loader is not None else None
        return self.is_whole and self.under_way and known is not loader

    def leave_pass(self) -> None:
        """Leave the previous pass, if the script begins another one in the middle of it."""
        if self._pass is not None and (begun := self._pass()) is not None:
            begun.close()
        if self.own is not None:
            self.own.leave()

    def follow(self, drawn: Drawn, *, left: bool = False) -> None:
        """Give the script's own generators the states that one process has after this batch."""
        given = -(-self._loop.reached // drawn.batch)
        if left:  # for a resumed run, which draws the whole order first
            self.order.left[self._passes] = given
        if isinstance(drawn, LoaderPass):
            drawn.own.give(given)

    def left_early(self, *, meant: bool) -> None:
        """Leave a pass early. Free-running workers meet before the script uses a model again, or at
        once if leaving was ``meant``, which also takes a checkpoint. A script that fails leaves its
        loop too, but must not wait for the others, and its epoch has not ended."""
        engine, current = self.parts.trained.engine, self._loop.current
        if not engine.lockstep:
            engine.rest()
            # Workers may be threads, and this is a hook of all modules.
            me = threading.current_thread()
            self._unmet = register_module_forward_pre_hook(
                lambda *_: self._meet_those_who_left() if threading.current_thread() is me else None
            )
        if meant and current is not None and self.parts.steps.refused is None:
            self._meet_those_who_left()
            self.parts.schedule.position = current.samples  # a resumed run takes no more of them
            self.parts.checkpointer.after_pass(current)

    def _meet_those_who_left(self) -> None:
        unmet, self._unmet = self._unmet, None
        if unmet is not None:
            unmet.remove()
            self.parts.trained.engine.leave_pass(self._loop.reached)

    def passed(self) -> None:
        self._pass = None
        self._streams.leave_pass()
        if self._left is not None:
            self._left -= 1
            self.end_if_done()

    @property
    def awaits_step(self) -> bool:
        """Whether a step is expected: inside a pass, or while gradients wait for their step."""
        if self.own is not None and self.own.under_way:
            return False
        pending = self.parts.trained.weight.pending
        return (self.under_way or pending > 0) and not self.parts.lifecycle.over

    def end_if_done(self, *, waits: bool = True) -> None:
        """End the training after the last pass: give the models their final weights, for evaluation
        and saving. With ``waits``, this is put off while accumulated gradients wait for a step."""
        waits = waits and self.parts.trained.weight.pending > 0
        if self._left == 0 and not self.under_way and not waits:
            self.end(writes_later=True)

    def _reader(self, loader: DataLoader[Any]) -> Reader:
        reader = read_by_number(loader, self._seed)
        if loader not in self._checked:
            self.parts.readers.of(reader, trains=True)
            self._checked.add(loader)
        return reader

    def end(self, *, writes_later: bool = False) -> None:
        lifecycle = self.parts.lifecycle
        if self._checks.is_child or lifecycle.over or lifecycle.broken():
            self._checks.end(broken=True)
            return
        try:
            self.leave_pass()
            with suppress(PeerLost):  # other workers may be gone already
                self._meet_those_who_left()
                self.parts.steps.agree_on_pending()
                self._checks.end(broken=False)
                self._loop.finish(writes_later=writes_later)
        except NotFinite as error:
            lifecycle.fail(str(error))
        finally:
            self._checks.end(broken=True)
        if self.parts.steps.refused is not None:
            lifecycle.fail(str(self.parts.steps.refused))
        elif self._loop.is_before_checkpoint:
            lifecycle.fail(
                "the resumed script ended before it reached the checkpoint, perhaps by early "
                "stopping: it counts epochs that are skipped, in which nothing improves\n"
                "hint: Start a new run, or let the script count only epochs that had batches."
            )


class AdoptedPass(Iterator[Any]):
    """Yields the batches of one pass to the script's loop."""

    def __init__(
        self,
        training: AdoptedTraining,
        batches: Iterator[Any],
        drawn: Drawn,
        *,
        counted: bool = False,
    ) -> None:
        self._training, self._batches, self._drawn = training, batches, drawn
        self._counted = counted
        self._losses = training.parts.steps.losses
        self._taken, self._over = 0, False
        self._follows = isinstance(drawn, LoaderPass) and drawn.own.any

    def __next__(self) -> Any:
        if self._over:
            if isinstance(self._drawn, PlainPass):
                return next(self._drawn.rest())
            if self._taken < 0:
                raise InputError(
                    "the script trains on two DataLoaders at once",
                    "Put both into one Dataset; evaluate under torch.no_grad().",
                )
            raise StopIteration
        try:
            batch = next(self._batches)
        except StopIteration:
            self._over = True
            parts = self._training.parts
            if self._taken and self.untrained:
                parts.steps.refused = _untrained()
                raise parts.steps.refused from None
            self._training.passed()
            if isinstance(self._drawn, LoaderPass):
                self._drawn.own.end()
            raise
        self._taken += 1
        if self._follows and self._alike:
            self._training.follow(self._drawn)
        return batch

    @property
    def _alike(self) -> bool:
        """Whether all workers are at the same batch."""
        return self._training.parts.trained.engine.lockstep or self._counted

    @property
    def untrained(self) -> bool:
        """Whether several workers share each batch and no loss was seen in this pass yet."""
        parts = self._training.parts
        return parts.trained.engine.workers > 1 and parts.steps.losses == self._losses

    def close(self, *, meant: bool = False, failed: bool = False) -> None:
        """End the pass, because the script left its loop; taking more batches of it later is an
        error. ``meant``: left by ``break`` or ``return``; ``failed``: perhaps left by an exception,
        which the other workers do not know of yet."""
        if isinstance(self._drawn, PlainPass):
            self._drawn.left = True
        if not self._over:
            if self._taken > 1 and self.untrained:  # the next call raises the error
                self._training.parts.steps.refused = _untrained()
            # A loop that knows how many batches there are does not ask for one more.
            alike = self._alike and self._taken > 0
            whole = alike and not failed and self._training.in_last_batch
            self._over, self._taken = True, 0 if whole else -1
            try:
                if alike:
                    self._training.follow(self._drawn, left=True)
                elif isinstance(self._drawn, LoaderPass) and not self._alike:
                    self._drawn.own.end()
                if whole:
                    next(self._batches, None)
                self._batches.close()  # type: ignore[attr-defined]
                if not whole:
                    self._training.left_early(meant=meant and alike)
            finally:
                self._training.passed()

    def __del__(self) -> None:
        with suppress(Exception):  # an error of the team shows again at the next step
            if isinstance(self._drawn, PlainPass):
                self._drawn.forget()
            try:
                frame = sys._getframe(1)
                self.close(meant=has_left_a_loop(frame), failed=may_have_failed(frame))
            except (InputError, RunStopped) as error:  # the next call raises the error
                self._training.parts.steps.refused = error


def _untrained() -> InputError:
    return InputError(
        "the script went through its training data without training, and each worker saw only its "
        "part",
        "If this is an evaluation, put it under torch.no_grad() or after model.eval().",
    )


class CheckedPass(Iterator[Any]):
    """Yields a pass to the script's loop; at any batch a forked child may go on alone."""

    def __init__(
        self, batches: Iterator[Any], checks: Checks, alone: Callable[[int], Iterator[Any]]
    ) -> None:
        self._batches, self._checks, self._alone = batches, checks, alone
        self._given, self._is_child = 0, False

    def __next__(self) -> Any:
        checks = self._checks
        if not self._is_child and (checks.is_child or (checks.due and checks.fork())):
            self._is_child, self._batches = True, self._alone(self._given)
        self._given += 1
        return next(self._batches)
