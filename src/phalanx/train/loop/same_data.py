"""Checks that all workers have the same data: each shows a fingerprint of a set at its first use.

No worker waits: each compares with the workers before it, so the last one compares with all. A set
is identified by its place in the script.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import weakref
from collections import Counter
from pathlib import Path
from traceback import walk_stack
from typing import Any

import numpy as np
import torch

from phalanx.core.errors import InputError
from phalanx.data.fingerprint import PARTS, PLACES, Print, fingerprint, first_difference, places_of
from phalanx.data.reader import Reader, TensorReader, as_reader
from phalanx.sync.arena.arena import Locks
from phalanx.train.engine.engine import Engine

SETS = 4
"""How many of each worker's newest sets others can compare with."""
_OURS = str(Path(__file__).parents[2])


class CheckedReaders:
    """Makes readers of the data to train on and to evaluate, and checks each set once."""

    def __init__(self, engine: Engine, seed: int, device: torch.device) -> None:
        self._engine, self._seed, self._device = engine, seed, device
        width = 2 + PLACES * PARTS * 2  # [which set, samples, fingerprint …]
        table = engine.region("data sets", engine.workers * SETS * width, torch.float64)
        self._table = table.view(engine.workers, SETS, width).numpy()
        self._uses: Counter[str] = Counter()
        self._known: dict[tuple[int, int], tuple[Any, Any, Reader | None]] = {}
        """The data (or a weak reference), augmentation and kept reader of each set in use."""
        self.checks = True
        """Whether sets are checked: until the workers share nothing any more."""

    def of(
        self, data: Any, augment: Any = None, *, trains: bool = False, moves: bool = False
    ) -> Reader:
        """Return a reader; ``moves``: batches, and perhaps all data, go to this worker's device."""
        key = (id(data), id(augment))
        if key not in self._known:
            reader = as_reader(data, seed=self._seed, augment=augment)
            if self.checks and self._engine.workers > 1:
                self._check(reader, f"data to {'train on' if trains else 'evaluate'}")
            if moves and self._device.type == "cuda":
                from phalanx.data.placement import placed

                reader = placed(reader, self._device, self._engine.workers)
            try:  # a reader that holds the data would keep them alive, so it is made again
                held = weakref.ref(data, functools.partial(self._known.pop, key))
                copied = isinstance(reader, TensorReader) and reader is not data
                kept = copied or getattr(reader, "was_counted", False)
                self._known[key] = held, augment, reader if kept else None
            except TypeError:  # a tuple is kept, so that its id stays its own
                self._known[key] = data, augment, reader
        return self._known[key][2] or as_reader(data, seed=self._seed, augment=augment)

    def _check(self, reader: Reader, what: str) -> None:
        """Refuse ``reader``'s data if another worker has other data in their place."""
        engine, place = self._engine, f"{what} {_place_in_script()}"
        self._uses[place] += 1
        digest = hashlib.sha256(f"{place} {self._uses[place]}".encode()).digest()
        which = 1.0 + int.from_bytes(digest[:6], "little")
        mine = np.concatenate(([which, len(reader)], fingerprint(reader).reshape(-1)))
        with engine.lock(Locks.DATA):
            self._table[engine.rank, self._uses.total() % SETS] = mine
            everything = self._table.copy()
        differences = {
            rank: words
            for rank, rows in enumerate(everything)
            for row in rows
            if row[0] == which and rank != engine.rank and (words := _compare(mine, row))
        }
        if differences:
            raise _refusal(what, engine.rank, differences)


def _place_in_script() -> str:
    """Name the lines that led here by their files' names, as folders differ between machines."""
    lines = ((frame.f_code.co_filename, line) for frame, line in walk_stack(sys._getframe(1)))
    return " ".join(f"{Path(f).name}:{line}" for f, line in lines if not f.startswith(_OURS))


def _compare(mine: Print, other: Print) -> str:
    """Describe the difference in words; empty if there is none."""
    if mine[1] != other[1]:
        return f"{int(mine[1])} samples against {int(other[1])}"
    shape = PLACES, PARTS, 2
    place = first_difference(mine[2:].reshape(shape), other[2:].reshape(shape))
    return "" if place is None else f"sample {places_of(int(mine[1]))[place]} differs"


def _refusal(what: str, rank: int, differences: dict[int, str]) -> InputError:
    ranks = [str(other) for other in sorted(differences)]
    others = f"worker {ranks[0]}" if len(ranks) == 1 else f"workers {', '.join(ranks)}"
    return InputError(
        f"worker {rank} has different {what} than {others} ({differences[min(differences)]})",
        "Make it with a fixed seed and in a fixed order, before phalanx.join if the script calls "
        "it: np.random.default_rng(0), torch.Generator().manual_seed(0), sorted(folder.glob(…)).",
    )
