"""The processes of a ``DataLoader``: how they begin and end, and how their batches travel."""

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
"""Bytes of a tensor that goes in the message itself."""
LARGE = 4 << 20
"""Bytes of a batch that several threads pin."""


class Prepare:
    """First thing in a loader's process: die with the worker, then what the script asks for."""

    def __init__(self, then: Callable[[int], None] | None, *, new_tensors: bool) -> None:
        """``new_tensors``: those of a batch are made for it, and kept by no dataset."""
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
    """What ``collate`` makes of ``samples``, to be pinned by several threads if it is large."""
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
    """``iter(loader)``. A process that a pool's thread forks fails when it ends: Python lets it
    wait for that thread, which it is itself. So in threads, another one starts them."""
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
    """End this process with that one, whatever it is doing: a thread waits for it.

    Not with the thread that started it: a script may read each batch in another one.
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
