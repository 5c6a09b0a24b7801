"""The same collectives through torch.distributed: Gloo on the CPU, NCCL between GPUs.

Process groups are made directly, so that ``torch.distributed`` itself stays as the user's script
left it. They meet through a store of our own on an authenticated channel, never a TCPStore, which
listens on every address. Gloo's own connections prove no key: that is said in the security page.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from phalanx.core.errors import InputError, MachineLost, PeerLost
from phalanx.sync.collective.algorithms import ring
from phalanx.sync.collective.links import raw
from phalanx.sync.connect.payloads import BLOCK, encode_header, make_room, rest_length


class KeyValue(Protocol):
    """Where participants leave words for each other."""

    def put(self, key: str, value: bytes) -> None: ...

    def get(self, key: str, gone: Callable[[], bool] | None = None) -> bytes:
        """Waits for the key; gives up with :class:`PeerLost` when ``gone`` says so."""
        ...

    def add(self, key: str, amount: int) -> int: ...


class KeyValueStore(dist.Store):  # type: ignore[name-defined,misc]
    """The store for torch's process groups; all keys begin with the name of the group."""

    def __init__(self, words: KeyValue, name: str, timeout: float) -> None:
        super().__init__()
        self._words, self._name = words, name
        self.set_timeout(timedelta(seconds=timeout))
        self._timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._words.put(self._name + key, data)

    def get(self, key: str) -> bytes:
        return self._get(key, self._timeout)

    def _get(self, key: str, seconds: float) -> bytes:
        end = time.monotonic() + seconds
        try:
            return self._words.get(self._name + key, lambda: time.monotonic() > end)
        except MachineLost:
            raise
        except PeerLost:
            raise TimeoutError(f"no machine has set {key}") from None

    def add(self, key: str, amount: int) -> int:
        return self._words.add(self._name + key, amount)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        seconds = self._timeout if timeout is None else timeout.total_seconds()
        for key in keys:
            self._get(key, seconds)

    def check(self, keys: Sequence[str]) -> bool:
        try:
            self.wait(keys, timedelta(0))
        except TimeoutError:
            return False
        return True

    def has_extended_api(self) -> bool:
        return False


class TorchDist:
    """The interface of ``Collective`` over a process group of torch's own."""

    def __init__(self, group: Any, store: KeyValueStore, rank: int, size: int) -> None:
        self._group, self.rank, self.size = group, rank, size
        # The group itself keeps only torch's half of it alive, and may ask it much later.
        self._store = store
        self.sent = 0
        """Bytes, by the formulas: torch does not tell."""

    def all_reduce(self, flats: Sequence[Tensor]) -> int:
        """Sum each of ``flats`` in place; returns the bytes sent, by the formula of the ring."""
        for flat in flats:
            self._do(self._group.allreduce, [flat])
        sizes = [flat.numel() * flat.element_size() for flat in flats]
        sent = sum(ring.bytes_sent(size, self.size, self.rank) for size in sizes)
        self.sent += sent
        return sent

    def sum_ahead(self, flat: Tensor, cuts: Sequence[int], *, on_gpu: bool = False) -> None:
        """Do nothing early: torch begins when everything is there."""

    def all_gather(self, payload: Sequence[Tensor]) -> list[list[Tensor]]:
        """Everybody's ``payload``, by rank. Torch wants equal sizes, so headers go first."""
        block, rest = encode_header(payload)
        header = bytearray(block + rest)
        blocks = self._gather_bytes([header[:BLOCK]], BLOCK)
        rests = [rest_length(one, f"participant {rank}") for rank, one in enumerate(blocks)]
        if longest := max(rests):
            tails = self._gather_bytes([header[BLOCK:]], longest)
            blocks = [one + tail[:n] for one, tail, n in zip(blocks, tails, rests, strict=True)]
        rooms = [make_room(one, f"participant {rank}") for rank, one in enumerate(blocks)]
        sizes = [sum(t.numel() * t.element_size() for t in room) for room in rooms]
        self.sent += sizes[self.rank] * (self.size - 1)
        if longest := max(sizes):
            sent = [raw(tensor.contiguous()) for tensor in payload]
            for room, data in zip(rooms, self._gather_bytes(sent, longest), strict=True):
                # The bytes of a message into its tensors.
                start = 0
                for tensor in room:
                    view = raw(tensor)
                    view[:] = memoryview(data)[start : start + len(view)]
                    start += len(view)
        return rooms

    def broadcast(self, tensors: Sequence[Tensor], root: int = 0) -> int:
        """Everybody's ``tensors`` become those of ``root``; returns the bytes the root sends."""
        for tensor in tensors:
            self._do(self._group.broadcast, tensor.detach(), root)
        count = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        return count * (self.size - 1) if self.rank == root else 0

    def close(self) -> None:
        """End the group and its threads, before the interpreter ends: they cannot outlive it."""
        if self._group is not None:
            self._group.shutdown()
            self._group = None

    def _gather_bytes(self, data: Sequence[bytearray | memoryview], length: int) -> list[bytearray]:
        """``data`` joined and padded to ``length``, from everybody."""
        joined = bytearray().join(data).ljust(length, b"\0")
        mine = torch.frombuffer(joined, dtype=torch.uint8)
        arrived = [bytearray(length) for _ in range(self.size)]
        rooms = [torch.frombuffer(one, dtype=torch.uint8) for one in arrived]
        self._do(self._group.allgather, [rooms], [mine])
        return arrived

    def _do(self, begin: Callable[..., Any], *arguments: object) -> None:
        try:
            begin(*arguments).wait()
        except RuntimeError as error:
            raise PeerLost(
                f"another host is gone ({_first_line(error)})",
                "See the logs of the other hosts, and whether their links are up.",
            ) from None


def gloo(
    words: KeyValue, name: str, rank: int, size: int, address: str, timeout: float = 60.0
) -> TorchDist:
    """Participant ``rank`` of the Gloo group ``name``, on the one given address."""
    options = dist.ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._devices = [dist.ProcessGroupGloo.create_device(hostname=address)]
    options._timeout = timedelta(seconds=timeout)
    store = KeyValueStore(words, f"{name}/", timeout)
    group = _made(dist.ProcessGroupGloo, store, rank, size, options)
    return TorchDist(group, store, rank, size)


def nccl(
    words: KeyValue, name: str, rank: int, size: int, device: torch.device, timeout: float = 60.0
) -> NcclDist:
    """Participant ``rank`` of the NCCL group ``name``: one GPU for each participant.

    NCCL takes its interface from ``NCCL_SOCKET_IFNAME``, which the launcher sets from the pool.
    """
    if not dist.is_nccl_available():
        raise InputError("this build of torch has no NCCL", "Use through=gloo, or leave it out.")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=timeout)
    store = KeyValueStore(words, f"{name}/", timeout)
    with torch.cuda.device(device):
        group = _made(dist.ProcessGroupNCCL, store, rank, size, options)
    return NcclDist(group, store, rank, size, device)


class NcclDist(TorchDist):
    """NCCL moves GPU memory only: what lies on the CPU goes there and back."""

    def __init__(
        self, group: Any, store: KeyValueStore, rank: int, size: int, device: torch.device
    ) -> None:
        super().__init__(group, store, rank, size)
        self._device = device

    def all_reduce(self, flats: Sequence[Tensor]) -> int:
        return self._on_device(flats, super().all_reduce)

    def broadcast(self, tensors: Sequence[Tensor], root: int = 0) -> int:
        broadcast = super().broadcast
        return self._on_device(tensors, lambda moved: broadcast(moved, root))

    def _on_device(self, tensors: Sequence[Tensor], act: Callable[[Sequence[Tensor]], int]) -> int:
        moved = [tensor.detach().to(self._device) for tensor in tensors]
        sent = act(moved)
        for tensor, result in zip(tensors, moved, strict=True):
            if tensor.device != self._device:
                tensor.detach().copy_(result)
        return sent

    def _gather_bytes(self, data: Sequence[bytearray | memoryview], length: int) -> list[bytearray]:
        joined = bytearray().join(data).ljust(length, b"\0")
        mine = torch.frombuffer(joined, dtype=torch.uint8).to(self._device)
        rooms = [torch.empty_like(mine) for _ in range(self.size)]
        self._do(self._group.allgather, [rooms], [mine])
        return [bytearray(room.cpu().numpy().tobytes()) for room in rooms]


def _made(group: Callable[..., Any], *arguments: object) -> Any:
    try:
        return group(*arguments)
    except (RuntimeError, TimeoutError) as error:
        raise PeerLost(
            f"the hosts did not find each other ({_first_line(error)})",
            "See their logs, and whether they can reach each other's addresses.",
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
