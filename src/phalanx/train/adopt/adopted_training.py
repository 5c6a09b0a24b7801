"""What an adopted script trains, once it has joined: the passes over its data, and the end."""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from phalanx.core.errors import InputError, NotFinite, PeerLost
from phalanx.data.reader import Reader
from phalanx.sync.arena.arena import Locks
from phalanx.train.adopt.kept_objects import ORDER, OrderState, keepers_of
from phalanx.train.adopt.loader_pass import LoaderPass, read_by_number
from phalanx.train.checkpoint.kept_state import unpack
from phalanx.train.loop.stretches import WorkerParts
from phalanx.train.loop.training_loop import TrainingLoop


class AdoptedTraining:
    """Joined: what is trained, and the passes over its data."""

    def __init__(
        self,
        parts: WorkerParts,
        loop: TrainingLoop,
        models: Sequence[nn.Module],
        optimizers: Sequence[torch.optim.Optimizer],
        passes: int | None,
        seed: int,
    ) -> None:
        self.parts, self.models = parts, models
        self._loop, self._optimizers, self._left, self._seed = loop, list(optimizers), passes, seed
        self._readers = weakref.WeakKeyDictionary[DataLoader[Any], Reader]()
        """A script may make a loader, of data of its own, in each epoch."""
        self._pass: weakref.ref[AdoptedPass] | None = None
        """The script's loop holds it: a ``break`` ends the pass at once."""
        self.in_eval_mode = weakref.WeakSet[DataLoader[Any]]()
        """Loaders that were trained on although the models were in eval mode."""
        engine = parts.trained.engine
        cells = engine.region("orders of passes", 2 * engine.workers, torch.int64)
        self._orders = cells.view(engine.workers, 2).numpy()
        """Of each worker, the pass that it is in, and a checksum of the order of its samples."""
        self._passes = 0
        self.order = OrderState()
        parts.trained.keepers.update(keepers_of(optimizers))
        parts.trained.keepers[ORDER] = self.order
        if parts.resumed is not None:
            parts.figures.say_once(
                "resumed: the script runs from its start, and goes through the epochs before the "
                "checkpoint without training; its own variables begin anew"
            )

    def rewind(self) -> None:
        """The order of a pass that is resumed in its middle is drawn as it was before."""
        resumed = self.parts.resumed
        alone = self.parts.trained.engine.workers == 1
        if resumed is not None and alone and self._loop.resumes_inside():
            saved = resumed.manifest.other.get("state", {}).get(ORDER)
            if saved is not None:
                torch.set_rng_state(unpack(saved, resumed.shared)["drawn_from"])

    @property
    def under_way(self) -> bool:
        """Whether the script is inside a pass."""
        return self._pass is not None

    @property
    def is_in_free_pass(self) -> bool:
        return self.under_way and not self.parts.trained.engine.lockstep

    @property
    def in_last_batch(self) -> bool:
        return self._loop.in_last_batch

    def knows(self, optimizer: torch.optim.Optimizer) -> bool:
        return any(known is optimizer for known in self._optimizers)

    def is_of(self, optimizers: Sequence[torch.optim.Optimizer]) -> bool:
        same = len(optimizers) == len(self._optimizers) and all(map(self.knows, optimizers))
        return same and not self.parts.lifecycle.over

    def through(self, loader: DataLoader[Any], drawn: LoaderPass) -> Iterator[Any]:
        # All workers have to share out the same samples; the last one to come sees all others.
        rank, checksum = self.parts.environment.rank, zlib.crc32(drawn.order.numpy().tobytes())
        self._passes += 1
        with self.parts.trained.engine.lock(Locks.DATA):
            self._orders[rank] = (self._passes, checksum)
            others = self._orders.copy()
        if any(row[0] == self._passes and row[1] != checksum for row in others):
            raise InputError(
                "the workers draw different orders of the samples",
                "Let the order depend on torch's random numbers, or on a generator with a seed.",
            )
        batches = self._loop.through_adopted(
            self._reader(loader), drawn.order, drawn.batch, drawn.leave
        )
        begun = AdoptedPass(self, batches)
        self._pass = weakref.ref(begun)
        return begun

    def leave_pass(self) -> None:
        """The script begins another pass: it has left the one before, if there is one."""
        if self._pass is not None and (begun := self._pass()) is not None:
            begun.close()

    def passed(self, *, whole: bool) -> None:
        self._pass = None
        if self._left is not None:
            self._left -= 1
            if whole:
                self.end_if_done()

    @property
    def awaits_step(self) -> bool:
        """Inside a pass; also after one, if batches of it have not been stepped with."""
        pending = self.parts.trained.weight.pending
        return (self.under_way or pending > 0) and not self.parts.lifecycle.over

    def end_if_done(self, *, waits: bool = True) -> None:
        """After the last pass: the models get their final weights, to be evaluated and saved.

        ``waits``: not before accumulated gradients have been stepped with.
        """
        waits = waits and self.parts.trained.weight.pending > 0
        if self._left == 0 and not self.under_way and not waits:
            self.end()

    def _reader(self, loader: DataLoader[Any]) -> Reader:
        if loader not in self._readers:
            reader = self.parts.readers.of(read_by_number(loader, self._seed), trains=True)
            self._readers[loader] = reader
        return self._readers[loader]

    def end(self) -> None:
        lifecycle = self.parts.lifecycle
        if lifecycle.over or lifecycle.broken():
            return
        self.leave_pass()
        try:
            with suppress(PeerLost):  # those it would inform are gone already
                self.parts.steps.agree_on_pending()
                self._loop.finish()
        except NotFinite as error:
            lifecycle.fail(str(error))


class AdoptedPass:
    """The batches of one pass, as the script's loop takes them."""

    def __init__(self, training: AdoptedTraining, batches: Iterator[Any]) -> None:
        self._training, self._batches = training, batches
        self._losses = training.parts.steps.losses
        self._taken, self._over = 0, False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._over:
            if self._taken < 0:
                raise InputError(
                    "the script goes through two DataLoaders at once to train",
                    "Put both into one Dataset; evaluate under torch.no_grad().",
                )
            raise StopIteration
        try:
            batch = next(self._batches)
        except StopIteration:
            self._over = True
            parts = self._training.parts
            untrained = self._taken and parts.steps.losses == self._losses
            if untrained and parts.trained.engine.workers > 1:
                raise InputError(
                    "the script went through its data without training on them, and each worker "
                    "saw only its part",
                    "Evaluate under torch.no_grad() or model.eval().",
                ) from None
            self._training.passed(whole=True)
            raise
        self._taken += 1
        return batch

    def close(self) -> None:
        """The script left its loop; one that takes more batches of it goes through two at once."""
        if not self._over:
            self._over, self._taken = True, -1
            try:
                self._batches.close()  # type: ignore[attr-defined]
            finally:
                self._training.passed(whole=False)

    def __del__(self) -> None:
        with suppress(Exception):  # a fault of the team shows again at the next step
            self.close()
