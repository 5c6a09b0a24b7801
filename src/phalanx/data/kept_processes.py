"""The processes of a script's ``DataLoader`` with ``persistent_workers``."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader

Keys = list[int]
"""Of the samples of a batch."""


def kept_of(loader: DataLoader[Any]) -> KeptProcesses:
    """Those that read for ``loader``; they end with it."""
    return _kept.setdefault(loader, KeptProcesses())


class KeptProcesses:
    """They go on from pass to pass."""

    def __init__(self) -> None:
        self._loader: DataLoader[Any] | None = None
        self._batches, self._owner = _Batches(), (0, 0)
        self._in_use = threading.Lock()

    def read(
        self, batches: Iterable[Keys], make: Callable[..., DataLoader[Any]], seed: int
    ) -> Iterator[Any]:
        """What ``make`` makes reads ``batches``. While a pass is under way, another has processes
        of its own."""
        if not self._in_use.acquire(blocking=False):
            yield from make(batches)
            return
        try:
            if self._loader is None or self._owner != (os.getpid(), seed):
                self._batches, self._owner = _Batches(), (os.getpid(), seed)
                self._loader = make(self._batches, keep=True)
            self._batches.current = batches
            yield from self._loader
        except Exception:
            self._loader = None  # it may not be able to go on
            raise
        finally:
            self._batches.current = ()
            self._in_use.release()


class _Batches:
    """Those of the pass under way."""

    current: Iterable[Keys] = ()

    def __iter__(self) -> Iterator[Keys]:
        return iter(self.current)


_kept: weakref.WeakKeyDictionary[DataLoader[Any], KeptProcesses] = weakref.WeakKeyDictionary()
