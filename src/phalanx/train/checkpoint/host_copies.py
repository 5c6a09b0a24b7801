"""From a GPU to the host, beside the training: a checkpoint is a copy on the device first.

That copy takes milliseconds, and training goes on; the thread that writes the checkpoint brings it
home in a stream of its own. Pinned memory takes long to get, so it is used again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor


def mark(tensors: Iterable[Tensor]) -> torch.cuda.Event | None:
    """An event behind what this thread has asked the GPU of ``tensors`` to do, if they have one."""
    device = next((t.device for t in tensors if t.is_cuda), None)
    if device is None:
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event


class HostCopies:
    """What it brought is good until it brings something else."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, str], Tensor] = {}
        self._stream: torch.cuda.Stream | None = None

    def bring(
        self, behind: torch.cuda.Event | None, *states: Mapping[str, Tensor]
    ) -> list[dict[str, Tensor]]:
        """``states`` in memory of the host, as they were at the event. Waits for them."""
        found = [{name: t if t.is_cuda else t.cpu() for name, t in s.items()} for s in states]
        if behind is None:
            return found
        device = next(t.device for state in found for t in state.values() if t.is_cuda)
        self._stream = self._stream or torch.cuda.Stream(device)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(behind)
            for number, state in enumerate(found):
                for name, tensor in state.items():
                    if tensor.is_cuda:
                        state[name] = self._copied((number, name), tensor)
        self._stream.synchronize()
        return found

    def _copied(self, key: tuple[int, str], tensor: Tensor) -> Tensor:
        known = self._buffers.get(key)
        if known is None or known.shape != tensor.shape or known.dtype != tensor.dtype:
            known = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._buffers[key] = known
        return known.copy_(tensor, non_blocking=True)
