"""Checks a training against one process: at its first steps, and at some later ones."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import astuple
from random import Random
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

from phalanx.adapters.torch_models import parameters_of
from phalanx.core.errors import InputError, PhalanxError
from phalanx.core.settings import RunSettings
from phalanx.core.spec import parse_spec
from phalanx.train.control import rendezvous as intents
from phalanx.train.loop.segments import WorkerParts
from phalanx.train.proof.child import connections
from phalanx.train.proof.proof import FAILED, SECONDS, Proof, Verdict

MOST = 50_000_000
"""The most parameters for a check: the child needs a copy of them."""
_SHARE = 0.02
"""The share of a training's time for checks, or ``SECONDS`` if that is longer."""
_LOCKSTEP = ("allreduce", "bsp")
_WHOLE = (
    "; something in the script is random on each worker, or depends on the time. With --workers 1 "
    "it trains as one process does"
)
_PARTS = (
    "Each worker sees its part of a batch, and the script computes something over whole batches: "
    "run it with --view whole, or declare its loss, --loss mean or sum. --check off trains it "
    "as it is."
)


def trains_as_one(chosen: RunSettings) -> bool:
    """Whether workers step together all the time, with gradients as they are."""
    return _steps_together(chosen) and not _is_trial(chosen)


def _steps_together(chosen: RunSettings) -> bool:
    phases = parse_spec(chosen.strategy).phases
    return len(phases) == 1 and phases[0].name in _LOCKSTEP and not phases[0].codec


def _is_trial(chosen: RunSettings) -> bool:
    return chosen.virtual is not None or chosen.profile is not None or chosen.explain


class Forked(Protocol):
    """A training, some of whose steps a forked child also takes alone."""

    @property
    def can_fork(self) -> bool: ...

    def go_alone(self) -> None: ...

    def parameter_names(self) -> list[str]: ...


class Checks:
    """Checks of a worker against a child that trains alone; both processes have this object."""

    def __init__(self, chosen: RunSettings) -> None:
        self._chosen = chosen
        self.is_child = False
        self._connected = connections()
        self._forkable: bool | None = None
        self._parts: WorkerParts | None = None
        """The parts of the training that is checked."""
        self._proof: Proof | None = None
        self._spent, self._noise, self._said = 0.0, False, False
        self._given: torch.Tensor | None = None
        """The state of torch's generator when the child was last given a batch."""
        self._due_at = self._steps = self._heard = 0
        self.due = 0
        """The steps of a check that begins at the script's next batch; 0: no check is due."""

    def before_joining(self) -> bool:
        """Whether this worker can be forked: no GPU survives that, and a child would share the
        connections that the script has made. To be called before workers connect."""
        if self._forkable is None:
            self._forkable = not torch.cuda.is_initialized() and connections() <= self._connected
        return self._forkable

    def begin(self, parts: WorkerParts, training: Forked) -> bool:
        """Begin a training; return whether it is checked. Collective if so."""
        engine, chosen, optimizers = parts.trained.engine, self._chosen, parts.trained.optimizers
        self._parts = self._proof = None
        one = engine.copies > 1 or (engine.workers > 1 and chosen.loss != "mean")
        if not chosen.check or not one or parts.resumed is not None or _is_trial(chosen):
            return False
        why = why_parts_differ(parts.trained.models) if engine.copies == 1 else None
        if not _steps_together(chosen):
            why = f"under {chosen.strategy} workers do not train as one process does"
        if sum(p.numel() for p in parameters_of(optimizers)) > MOST:
            why = "a copy of so many parameters takes much memory"
        if why:
            parts.figures.say_once(f"not checked against one process: {why}")
            return False
        self._told = engine.region("proof", 6, torch.float64).numpy()
        self._parts, self._optimizers, self._training = parts, list(optimizers), training
        self._plan = CheckPlan(chosen.check, chosen.seed)
        tries = engine.rank + engine.copy == 1
        self._can_fork = tries and bool(self._forkable) and training.can_fork
        if tries and not self._can_fork:
            self._note(Verdict(FAILED, 0, 0.0))
        self._began, self._steps, self._heard = time.monotonic(), 0, 0
        self.due, self._due_at = self._plan.length(0), 0
        parts.steps.watchers.append(self._stepped)
        return True

    # -- between two steps -------------------------------------------------------------------

    def fork(self) -> bool:
        """Fork a child if a check is due; return whether this is the child, which goes on alone."""
        parts = self._parts
        if not self.due or self.is_child or parts is None or parts.trained.weight.pending:
            return False
        length, self.due = self.due, 0
        if self._steps != self._due_at:  # another step of the same batch came after it
            return False
        if not self._can_fork or not self._has_time() or not self._is_forkable(parts):
            return False
        proof = self._proof = Proof(self._optimizers, length, self._steps)
        engine, states = parts.trained.engine, [dict(o.state) for o in self._optimizers]
        for index in range(len(states) if self._steps else 0):
            engine.optimizers.write(index)
        self.is_child = proof.fork(engine.leave_shared_memory)
        if self.is_child:
            parts.steps.close()
            self._training.go_alone()
            return True
        for optimizer, state in zip(self._optimizers, states, strict=True):
            optimizer.state.clear()
            optimizer.state.update(state)
        return False

    def _has_time(self) -> bool:
        """Wait for the previous check while there is time; return whether time is left."""
        now, proof = time.monotonic(), self._proof
        most = max(SECONDS, _SHARE * (now - self._began))
        if proof is not None:
            self._tell(proof.wait(most - self._spent))
            self._spent += time.monotonic() - now
            if proof.child is not None:
                return False
            self._spent += proof.spent
            self._proof = None
        return self._spent < most

    def _is_forkable(self, parts: WorkerParts) -> bool:
        """Whether a child can be forked now: it cannot use processes that read for this worker."""
        engine = parts.trained.engine
        reads = engine.copies > 1 and bool(multiprocessing.active_children())
        return not reads and (not self._steps or engine.holds_optimizers)

    def _stepped(self) -> None:
        self._steps += 1
        if self._steps >= self._plan.begins and (length := self._plan.length(self._steps)):
            self.due, self._due_at = length, self._steps
        if self._proof is not None or self._told[0] > self._heard:
            self._tell(self._proof.note() if self._proof is not None else None)

    def given(self) -> None:
        """Note the state of the random numbers when the child is given its next batch."""
        self._note_noise()
        self._given = torch.get_rng_state()

    def _note_noise(self) -> None:
        drawn = self._given is not None and not torch.equal(self._given, torch.get_rng_state())
        self._noise = self._noise or drawn

    def step(self, plain: Callable[..., Any], optimizer: Any, closure: Any, **kwargs: Any) -> Any:
        """Take a step in the child, and note its result."""
        assert self._proof is not None and self._parts is not None
        given = () if closure is None else (closure,)
        with self._parts.steps.ours:  # an optimizer may step another one inside
            found = plain(optimizer, *given, **kwargs)
        self._note_noise()
        self._proof.note_alone(noise=self._noise)
        return found

    # -- what was found ----------------------------------------------------------------------

    def _tell(self, found: Verdict | None) -> None:
        """Report a verdict after a step; end the run if it failed for a script that sees parts."""
        if found is not None and self._is_refused(found):
            self._refuse(found)
        self._note(found)
        self._hear()

    def _is_refused(self, found: Verdict) -> bool:
        assert self._parts is not None
        return not found.holds and self._parts.trained.engine.copies == 1

    def _refuse(self, found: Verdict) -> None:
        assert self._parts is not None
        error = InputError(found.words(self._training.parameter_names()), _PARTS)
        self._parts.steps.refused = error
        raise error

    def _note(self, found: Verdict | None) -> None:
        """Give the verdict to the other workers, which look for one after each step."""
        if found is not None and not (found.holds and self._said):
            self._said = True
            self._told[1:] = astuple(found)
            self._told[0] += 1

    def _hear(self) -> None:
        assert self._parts is not None
        if self._told[0] <= self._heard:
            return
        self._heard = int(self._told[0])
        kind, steps, worst, place, before = self._told[1:].tolist()
        heard = Verdict(int(kind), int(steps), worst, int(place), int(before))
        if self._is_refused(heard):
            self._refuse(heard)
        line = heard.words(self._training.parameter_names())
        self._parts.figures.say_once(line if heard.holds else line + _WHOLE)

    def end(self, *, broken: bool) -> None:
        """End the checks, and the process if it is a child. Collective, unless ``broken``."""
        proof, self._proof = self._proof, None
        if self.is_child and proof is not None:
            proof.end_alone()
        if broken and proof is not None:
            proof.stop()
        parts = self._parts
        if parts is None:
            return
        try:
            if not broken:
                self._note(proof.last() if proof is not None else None)
                with suppress(PhalanxError):  # another worker has failed, and will say so
                    parts.trained.engine.meet(intents.FINISH)
                self._hear()
        finally:
            parts.steps.watchers.remove(self._stepped)
            del self._training, self._optimizers  # so that the script can drop them
            self._parts = None


LATER = 3
"""The length in steps of each check but the first one."""


class CheckPlan:
    """Plans checks of the first steps, and of later ones at random, ever further apart."""

    def __init__(self, first: int, seed: int) -> None:
        """Plan checks; ``first``: the length of the first one, or 0 for none."""
        self._first, self._random = first, Random(seed)
        self.begins = 0 if first else -1
        """The number of steps after which the next or present check begins."""

    def length(self, step: int) -> int:
        """Return the length of the check that begins after ``step`` steps, or 0; asked in order."""
        while self._first and self.begins < step:
            self.begins += 2 * self._first + int((self.begins + 8) * self._random.uniform(0.3, 1.0))
        if self.begins != step:
            return 0
        return min(LATER, self._first) if step else self._first


def why_parts_differ(models: Sequence[nn.Module]) -> str | None:
    """Describe why workers that see parts of a batch must differ from one process, if they must."""
    for module in (module for model in models for module in model.modules() if module.training):
        if isinstance(module, _BatchNorm):
            return "batch norm sees a part of each batch"
        if isinstance(module, _DropoutNd) and module.p > 0:
            return "dropout is each worker's own"
    return None
