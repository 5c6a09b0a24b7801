"""A mesh of connections among some participants, by rank, on which collectives run.

Messages are raw bytes of sizes that both sides know, so there are no frames, and a message may be
received in smaller pieces than it was sent in.
"""

from __future__ import annotations

import ctypes
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from phalanx.core.errors import PeerLost
from phalanx.sync.connect.channel import Channel
from phalanx.sync.connect.connecting import connect
from phalanx.sync.connect.dispatcher import Credentials
from phalanx.sync.connect.duplex import exchange as exchange_channels
from phalanx.sync.connect.handshake import Introduction
from phalanx.sync.connect.payloads import BLOCK, encode_header, make_room, rest_length

Flat = Tensor | memoryview
Parcel = tuple[int, Sequence[memoryview]]
"""A participant's rank, and the memory that is sent to it or received from it."""

SMALL = 16 << 10
"""Bytes that the kernel takes at once, so that both sides may send first and then receive."""
_KEPT_VIEWS = 64


def raw(flat: Flat) -> memoryview:
    """Return the bytes of a contiguous tensor on the CPU, without a copy."""
    if isinstance(flat, memoryview):
        return flat
    if not flat.is_contiguous() or flat.is_cuda:
        raise ValueError("only contiguous tensors on the CPU can be sent")
    # Through numpy this takes five times as long, which shows where messages are small.
    memory = (ctypes.c_ubyte * (flat.numel() * flat.element_size())).from_address(flat.data_ptr())
    memory.tensor = flat  # type: ignore[attr-defined]  # the view keeps the tensor alive
    return memoryview(memory).cast("B")


class Scratch:
    """Memory that is allocated once and lent again and again."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._views: dict[tuple[torch.dtype, int], Tensor] = {}

    def take(self, like: Tensor, count: int | None = None) -> Tensor:
        """Lend ``count`` elements (or as many as ``like``) of its type, until the next call."""
        count = like.numel() if count is None else count
        view = self._views.get((like.dtype, count))
        return self._make(like, count) if view is None else view

    def _make(self, like: Tensor, count: int) -> Tensor:
        needed = count * like.element_size()
        if self._memory.numel() < needed:
            self._memory = torch.empty(needed, dtype=torch.uint8)
            self._views.clear()
        if len(self._views) >= _KEPT_VIEWS:
            self._views.clear()
        view = self._memory[:needed].view(like.dtype)
        self._views[like.dtype, count] = view
        return view


class Links:
    """The connections of participant ``rank``: an authenticated channel to each of the others."""

    def __init__(
        self,
        rank: int,
        channels: Mapping[int, Channel],
        names: Sequence[str],
        *,
        timeout: float | None = None,
    ) -> None:
        self.rank, self.size, self.names = rank, len(names), tuple(names)
        self.sent = 0
        """Bytes of data that this participant has sent, headers of payloads included."""
        self.scratch = Scratch()
        self._channels, self._timeout = dict(channels), timeout
        self.goes_ahead = all(channel.sends_ahead for channel in self._channels.values())
        """Whether part of an exchange may be sent early, by ``push`` and ``pull``."""

    def push(self, to: int, outgoing: Sequence[memoryview]) -> int:
        """Send what can be sent without waiting; return how many bytes that was."""
        if not self.goes_ahead:
            return 0
        channel = self._channels[to]
        channel.expect_bulk(sum(map(len, outgoing)))
        count = channel.send_some(outgoing, wait=False)
        self.sent += count
        return count

    def pull(self, frm: int, incoming: memoryview) -> int:
        """Receive what has arrived already; return how many bytes that was."""
        return self._channels[frm].receive_some(incoming, wait=False) if self.goes_ahead else 0

    def swap(self, outgoing: Sequence[Parcel], incoming: Sequence[Parcel]) -> None:
        """Send all of ``outgoing`` and receive all of ``incoming``, both at once."""
        channels = self._channels
        count = sum(len(buffer) for _, buffers in outgoing for buffer in buffers)
        if count <= SMALL and self._timeout is None:
            for to, buffers in outgoing:
                channels[to].send_raw(buffers)
            for frm, buffers in incoming:
                for buffer in buffers:
                    channels[frm].receive_raw(buffer)
        else:
            exchange_channels(
                [(channels[to], buffers) for to, buffers in outgoing],
                [(channels[frm], buffers) for frm, buffers in incoming],
                self._timeout,
            )
        self.sent += count

    def close(self) -> None:
        """Close the connections; the others find this participant gone."""
        for channel in self._channels.values():
            channel.close()

    def exchange(
        self, to: int | None, outgoing: Flat | None, frm: int | None, incoming: Flat | None
    ) -> None:
        """Send to ``to`` and receive from ``frm`` at once; ``None`` leaves that direction out."""
        self.swap(
            [] if to is None or outgoing is None else [(to, (raw(outgoing),))],
            [] if frm is None or incoming is None else [(frm, (raw(incoming),))],
        )

    def exchange_add(self, to: int, outgoing: Tensor, frm: int, target: Tensor) -> None:
        """Send ``outgoing``, and add the received tensor to ``target``, perhaps the same one."""
        arrived = self.scratch.take(target)
        self.exchange(to, outgoing, frm, arrived)
        target.add_(arrived)

    def send(self, to: int, outgoing: Flat) -> None:
        self.exchange(to, outgoing, None, None)

    def receive(self, frm: int, incoming: Flat) -> None:
        self.exchange(None, None, frm, incoming)

    def exchange_payloads(
        self, to: int | None, payload: Sequence[Tensor], frm: int | None
    ) -> list[Tensor]:
        """Exchange tensors whose number, types and sizes the receiver does not know."""
        received = self.swap_payloads(
            {} if to is None else {to: payload}, [] if frm is None else [frm]
        )
        return [] if frm is None else received[frm]

    def swap_payloads(
        self, outgoing: Mapping[int, Sequence[Tensor]], senders: Iterable[int]
    ) -> dict[int, list[Tensor]]:
        """Send tensors to some and receive tensors from ``senders``; return these, by sender."""
        headers = {to: encode_header(payload) for to, payload in outgoing.items()}
        blocks = {frm: bytearray(BLOCK) for frm in senders}
        self.swap(
            [(to, (memoryview(block),)) for to, (block, _) in headers.items()],
            [(frm, (memoryview(block),)) for frm, block in blocks.items()],
        )
        rests = {
            frm: bytearray(rest_length(block, self.names[frm])) for frm, block in blocks.items()
        }
        if any(rests.values()) or any(rest for _, rest in headers.values()):
            self.swap(
                [(to, (memoryview(rest),)) for to, (_, rest) in headers.items() if rest],
                [(frm, (memoryview(rest),)) for frm, rest in rests.items() if rest],
            )
        rooms = {
            frm: make_room(block + rests[frm], self.names[frm]) for frm, block in blocks.items()
        }
        self.swap(
            [(to, [raw(t.contiguous()) for t in payload]) for to, payload in outgoing.items()],
            [(frm, [raw(t) for t in room]) for frm, room in rooms.items()],
        )
        return rooms


def open_links(
    rank: int,
    addresses: Sequence[tuple[str, int]],
    access: Credentials,
    tag: str,
    *,
    timeout: float = 30.0,
    names: Sequence[str] | None = None,
    patience: float | None = None,
) -> Links:
    """Connect ``rank`` with all the others; collective: each calls it with the same ``tag``.

    ``addresses`` are those of everybody's listeners, by rank. The higher rank connects to the
    lower. ``timeout`` bounds the opening, ``patience`` each exchange afterwards (``None``: as long
    as the other side is there, because a slow machine is not a lost one).
    """
    names = tuple(names or (f"{address}:{port}" for address, port in addresses))
    channels = open_channels(rank, addresses, access, tag, timeout=timeout, names=names)
    return Links(rank, channels, names, timeout=patience)


def open_channels(
    rank: int,
    addresses: Sequence[tuple[str, int]],
    access: Credentials,
    tag: str,
    *,
    timeout: float,
    names: Sequence[str],
) -> dict[int, Channel]:
    """Open a channel to each of the others, by rank."""
    deadline = time.monotonic() + timeout
    channels: dict[int, Channel] = {}
    try:
        for peer, (address, port) in enumerate(addresses[:rank]):
            left = max(0.1, deadline - time.monotonic())
            with _named(names[peer], address, port):
                caller = Introduction(tag, rank, peer)
                channels[peer] = connect(
                    address, port, access.key, caller, tls=access.tls, timeout=left,
                    source=access.address,
                )  # fmt: skip
        for peer in range(rank + 1, len(addresses)):
            other = Introduction(tag, peer, rank)
            channels[peer] = access.dispatcher.expect(other, deadline, names[peer])
    except BaseException:
        for channel in channels.values():
            channel.close()
        raise
    for peer, channel in channels.items():
        channel.peer = names[peer]
        _opened.add(channel)
    return channels


_opened: weakref.WeakSet[Channel] = weakref.WeakSet()


def links_used() -> dict[str, tuple[int, float]]:
    """Return, for each participant that this process is connected with, the bytes that have reached
    it, and the seconds in which some were under way."""
    found: dict[str, tuple[int, float]] = {}
    for channel in list(_opened):
        count, seconds = channel.use()
        known, before = found.get(channel.peer, (0, 0.0))
        found[channel.peer] = known + count, max(before, seconds)
    return found


@contextmanager
def _named(name: str, address: str, port: int) -> Iterator[None]:
    """Let errors of opening a connection name the participant, not its address and port."""
    try:
        yield
    except PeerLost as lost:
        cause = lost.cause.replace(f"{address}:{port}", name, 1)
        raise PeerLost(cause, lost.remedy) from None
