"""Runs a script that does not know Phalanx: alone, and adopted by workers that are threads."""

from __future__ import annotations

import gc
import random
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plain_worlds import PlainRun, as_workers

import phalanx
from phalanx.core import context
from phalanx.core.script.startup import run_startup
from phalanx.core.script.weight_writes import may_write_weights
from phalanx.policies.sample_assignment import Lease
from phalanx.sync.arena import memory_arena
from phalanx.sync.arena.deterministic_scheduler import DeterministicScheduler
from phalanx.train.adopt import torch_patches
from phalanx.train.engine.engine import Engine
from phalanx.train.step.gradient_weight import GradientWeight

Result = dict[str, Any]


@dataclass
class Ended:
    """What a worker's script ended with."""

    result: Result
    counted: list[bool]
    """For each batch of its loop: whether its samples count as this worker's."""

    def seen(self) -> Counter[tuple[int, int]]:
        """How often each sample was seen in each epoch."""
        batches = zip(self.result["seen"], self.counted, strict=True)
        return Counter((epoch, i) for (epoch, ids), counts in batches if counts for i in ids)


def alone(script: Path) -> Result:
    """Plain Python: this thread is no worker, so torch is to it as it is."""
    assert torch_patches.current_adoption() is None
    gc.collect()
    forget_hooks()
    return execute(script, join=PlainRun)


def forget_hooks() -> None:
    """A worker that fails leaves its hooks of all modules, as its process would end. These workers
    are threads: the process goes on, and threads are numbered again and again."""
    torch.nn.modules.module._global_forward_pre_hooks.clear()


def seen_alone(result: Result) -> Counter[tuple[int, int]]:
    return Counter((epoch, i) for epoch, ids in result["seen"] for i in ids)


def execute(script: Path, **given: Any) -> Result:
    """``given`` are names that the script finds there."""
    names: dict[str, Any] = {"__name__": "__main__", "__file__": str(script), **given}
    exec(compile(script.read_bytes(), str(script), "exec", dont_inherit=True), names)
    result: Result = names["RESULT"]
    return result


def adopted(script: Path, workers: int, folder: Path, **settings: Any) -> list[Ended]:
    """What each of ``workers`` ended with, in view ``parts`` unless the settings say otherwise."""
    settings.setdefault("view", "parts")
    gc.collect()  # loops of workers that were refused before end now, not within this run
    forget_hooks()
    with _leases_noted() as noted, _generators_of_their_own():

        def work(rank: int) -> Ended:
            mine = noted[threading.get_ident()] = []
            try:
                run_startup(adopt=True)
                result = execute(script)
                worker = context.current()
                assert worker is not None
                for call in reversed(worker.at_end):
                    call()
            finally:
                if (adoption := torch_patches.current_adoption()) is not None:
                    adoption.streams.common()  # a refused worker's process would end here
                torch_patches.end_adoption()
            # Alone it has all there is, also where it evaluates as if it trained.
            return Ended(result, mine if workers > 1 else [True] * len(result["seen"]))

        private = may_write_weights(script)
        return as_workers(workers, folder, work, adopt=True, private_weights=private, **settings)


def joined(script: Path, workers: int, folder: Path, **settings: Any) -> list[Ended]:
    """What each of ``workers`` ended with, of a script that joins."""
    with _leases_noted() as noted, _generators_of_their_own():

        def work(rank: int) -> Ended:
            mine = noted[threading.get_ident()] = []
            return Ended(execute(script, join=phalanx.join), mine)

        return as_workers(workers, folder, work, **settings)


@contextmanager
def _leases_noted() -> Iterator[dict[int, list[bool]]]:
    """Of each batch, by thread, whether it counts: a last one may have fewer samples than there
    are workers, and those without a part go through it for nothing."""
    noted: dict[int, list[bool]] = {}
    plain = GradientWeight.new_batch

    def new_batch(self: GradientWeight, lease: Lease, batch: int, engine: Engine) -> None:
        noted[threading.get_ident()].append(lease.samples > 0)
        plain(self, lease, batch, engine)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GradientWeight, "new_batch", new_batch)
        yield noted


class _OwnGenerators(DeterministicScheduler):
    """Workers are processes, each with its random numbers: here they are threads of one."""

    def _switch(self, slot: Any) -> None:
        states = random.getstate(), np.random.get_state(), torch.get_rng_state()
        super()._switch(slot)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.default_generator.set_state(states[2])


@contextmanager
def _generators_of_their_own() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_arena, "DeterministicScheduler", _OwnGenerators)
        yield
