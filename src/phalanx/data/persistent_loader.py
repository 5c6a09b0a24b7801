"""Keeps the processes of a script's ``DataLoader`` with ``persistent_workers`` between passes."""

from __future__ import annotations

import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from phalanx.data.loader_process import begun


class PersistentLoader:
    """Reads what the script's loader would, and belongs to it: its processes end with it."""

    @staticmethod
    def of(loader: DataLoader[Any]) -> PersistentLoader:
        found: PersistentLoader = vars(loader).setdefault("_phalanx_loader", PersistentLoader())
        return found

    def __init__(self) -> None:
        # Only in the process that started them: a forked child must leave them alone.
        self._kept: defaultdict[int, _Kept] = defaultdict(_Kept)

    def __reduce__(self) -> tuple[type[PersistentLoader], tuple[()]]:
        return PersistentLoader, ()  # a copy of the loader starts its own

    def read(
        self, batches: Iterable[list[int]], make: Callable[..., DataLoader[Any]], seed: int
    ) -> Iterator[Any]:
        """The batches with these keys, by the loader that ``make`` makes. A second pass at the same
        time gets its own loader."""
        kept = self._kept[os.getpid()]
        if not kept.in_use.acquire(blocking=False):
            yield from begun(make(batches))
            return
        try:
            if kept.loader is None or kept.seed != seed:
                kept.batches, kept.seed = _Batches(), seed
                kept.loader = make(kept.batches, keep=True)
            kept.batches.current = batches
            yield from begun(kept.loader)
        except GeneratorExit:
            raise
        except BaseException:
            kept.loader = None  # it may not be able to go on
            raise
        finally:
            kept.batches.current = ()
            kept.in_use.release()


class _Batches:
    """The batches of the current pass."""

    current: Iterable[list[int]] = ()

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.current)


class _Kept:
    def __init__(self) -> None:
        self.loader: DataLoader[Any] | None = None
        self.batches, self.seed = _Batches(), 0
        self.in_use = threading.Lock()
