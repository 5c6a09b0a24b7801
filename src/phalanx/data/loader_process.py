"""In a process of a ``DataLoader``: how it ends, and how its batches travel to the worker."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data import get_worker_info

from phalanx.agent.system import PR_SET_PDEATHSIG, prctl

if TYPE_CHECKING:
    from phalanx.data.lazy import Seeded

SMALL = 16 << 10
"""Bytes of a tensor that goes in the message itself."""
_OWN = 2
"""References to memory that one tensor has alone: its own, and that of the count."""


class Prepare:
    """First thing in a loader's process: die with the worker, then what the script asks for."""

    def __init__(self, then: Callable[[int], None] | None, *, keep: bool) -> None:
        self._then, self._keep, self._worker = then, keep, os.getpid()

    def __call__(self, number: int) -> None:
        if self._keep:  # beyond the end of the thread that started it
            die_with(self._worker)
        else:
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        ForkingPickler.register(Tensor, reduce_by_size)
        info = get_worker_info()
        if info is not None:
            own = cast("Seeded", info.dataset).dataset  # the script's
            object.__setattr__(info, "dataset", own)
        if self._then is not None:
            self._then(number)


def die_with(process: int) -> None:
    """End this process with that one, whatever it is doing: a thread waits for it."""

    def wait() -> None:
        select.select([handle], [], [])
        os.kill(os.getpid(), signal.SIGKILL)

    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        os._exit(1)
    threading.Thread(target=wait, daemon=True).start()


def reduce_by_size(tensor: Tensor) -> tuple[Any, ...]:
    """How ``tensor`` is pickled: a small one by its values, unless others share its memory.

    Torch makes shared memory for each, and the worker asks for its descriptor over a new
    connection, which takes longer than all else that is done for labels.
    """
    # Not all kinds have values in NumPy; and after an error here the worker would wait for ever.
    with contextlib.suppress(Exception):
        users = torch._C._storage_Use_Count(tensor.untyped_storage()._cdata)
        if users == _OWN and tensor.nbytes <= SMALL and tensor.is_contiguous():
            return torch.from_numpy, (tensor.numpy(),)
    reduced: tuple[Any, ...] = reduce_tensor(tensor)
    return reduced
