"""Starts and ends the processes of a ``DataLoader``, and sends their batches."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any, cast

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data._utils.pin_memory import pin_memory

from phalanx.agent.system import readable
from phalanx.data.prefetch import FEW_THREADS

SMALL = 16 << 10
"""Tensors of at most so many bytes are part of the message itself."""
LARGE = 4 << 20
"""Batches of at least so many bytes are pinned by several threads."""


class Prepare:
    """Prepares a loader's process: ties it to the worker, then calls the script's function."""

    def __init__(self, then: Callable[[int], None] | None, *, new_tensors: bool) -> None:
        """``new_tensors``: no dataset keeps the tensors of a batch."""
        self._then, self._new_tensors, self._worker = then, new_tensors, os.getpid()

    def __call__(self, number: int) -> None:
        die_with(self._worker)
        if self._new_tensors:
            ForkingPickler.register(Tensor, reduce_by_size)
        info = get_worker_info()
        if info is not None:
            own = cast("Any", info.dataset).dataset  # the script's
            object.__setattr__(info, "dataset", own)
        if self._then is not None:
            self._then(number)


def collated_to_pin(collate: Callable[[Any], Any], threads: int, samples: Any) -> ToPin:
    """Make a batch of ``samples``; several threads will pin it if it is large."""
    batch = collate(samples)
    parts = list(batch.values()) if isinstance(batch, dict) else batch
    parts = parts if isinstance(parts, list | tuple) else ()
    size = sum(part.numel() * part.element_size() for part in parts if isinstance(part, Tensor))
    return ToPin(batch, min(FEW_THREADS, threads) if size >= LARGE else 1)


class ToPin:
    """Pins its batch in torch's thread, which by itself copies with one thread."""

    def __init__(self, batch: Any, threads: int) -> None:
        self.batch, self._threads = batch, threads

    def pin_memory(self) -> Any:
        """Called by torch in its thread; the batch takes this object's place."""
        if torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        return pin_memory(self.batch)


def begun(loader: DataLoader[Any]) -> Iterator[Any]:
    """``iter(loader)``. If a thread of a pool forks a process, that fails at its end, because
    Python makes it wait for this thread, which is itself. So another thread starts the loader."""
    if threading.current_thread() is threading.main_thread():
        return iter(loader)
    found: list[Any] = []

    def begin() -> None:
        try:
            found.append(iter(loader))
        except BaseException as error:
            found.append(error)

    starter = threading.Thread(target=begin)
    starter.start()
    starter.join()
    if isinstance(found[0], BaseException):
        raise found[0]
    return cast("Iterator[Any]", found[0])


def die_with(process: int) -> None:
    """Kill this process as soon as ``process`` ends; a thread waits for that.

    The signal for a parent's death would come too early: when the thread that forked us ends.
    """

    def wait() -> None:
        readable([handle])
        os.kill(os.getpid(), signal.SIGKILL)

    try:
        handle = os.pidfd_open(process)
    except ProcessLookupError:
        os._exit(1)
    except OSError:  # before Linux 5.3; torch looks for it between two samples
        return
    threading.Thread(target=wait, daemon=True).start()


def reduce_by_size(tensor: Tensor) -> tuple[Any, ...]:
    """How ``tensor`` is pickled: a small one by its values.

    Torch makes shared memory for each, and the worker asks for its descriptor over a new
    connection, which takes longer than all else that is done for labels.
    """
    # Some dtypes are not in NumPy; and after an error here the worker would wait for ever.
    with contextlib.suppress(Exception):
        if tensor.nbytes <= SMALL and tensor.is_contiguous():
            return torch.from_numpy, (tensor.numpy(),)
    reduced: tuple[Any, ...] = reduce_tensor(tensor)
    return reduced
