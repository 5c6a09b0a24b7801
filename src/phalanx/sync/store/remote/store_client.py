"""A worker's access to the parameter store on other machines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from phalanx.core.spec.codecs import CodecSpec
from phalanx.sync.arena.arena import Lock
from phalanx.sync.arena.clock import Clock
from phalanx.sync.codec.codec import Payload
from phalanx.sync.codec.encoding import Stream
from phalanx.sync.codec.make import parts_of
from phalanx.sync.connect.channel import Channel
from phalanx.sync.state.gradient_values import clip_factor
from phalanx.sync.state.layout import Layout, reshard
from phalanx.sync.state.optimizer_state import State
from phalanx.sync.state.replica import Masks
from phalanx.sync.store.remote import store_messages as m
from phalanx.sync.store.remote.server_connections import (
    ServerConnection,
    ServerConnections,
    done,
)
from phalanx.sync.strategy import Timing


@dataclass(frozen=True)
class Share:
    """One contributor's part of a synchronous step.

    ``empty``: the contributor has neither samples nor gradients, and sends none. ``step`` only
    grows between two calls of ``load``.
    """

    step: int
    expected: Sequence[int]
    rank: int
    weight: float
    used: Masks
    clip: float | None = None
    empty: bool = False


class StoreClient:
    """Sends and receives whole flat CPU tensors, one per layout, of which each server has a slice.

    Requests go to all servers before any answer is read. Locks are always taken in the order of
    the servers, so that workers who share the connections cannot wait for each other in a ring.
    """

    def __init__(
        self,
        channels: Sequence[Channel],
        locks: Sequence[Lock],
        name: str,
        optimizer: torch.optim.Optimizer,
        layouts: Sequence[Layout],
        clock: Clock,
        codecs: Sequence[CodecSpec] = (),
        versions: Tensor | None = None,
        look: Callable[[], None] = lambda: None,
    ) -> None:
        """``versions``: see :class:`ServerConnection`; without them the copy is not shared."""
        self._name, self._optimizer, self._clock = name, optimizer, clock
        self.layouts = [reshard(layout, len(channels)) for layout in layouts]
        """The layouts, with one shard per server."""
        versions = torch.full((len(channels),), -1) if versions is None else versions
        self._servers = ServerConnections(
            [
                ServerConnection(channel, lock, versions, i)
                for i, (channel, lock) in enumerate(zip(channels, locks, strict=True))
            ],
            self.layouts,
            look,
        )
        self._codecs = [codec.label for codec in codecs]
        self._slots: list[str] = []

    # -- the whole state ---------------------------------------------------------------------

    def open(self, client: str, ranks: Sequence[int]) -> None:
        """Make or join the store as ``client``, a name, for the workers ``ranks``."""
        answers = self._servers.ask(
            lambda server: m.Open(
                self._name,
                describe(self._optimizer, self.layouts, server, self._codecs),
                client,
                list(ranks),
            )
        )
        self._slots = next(answer.slots for answer in answers if isinstance(answer, m.Opened))

    def load(self, state: State) -> None:
        """Load parameters, slots and counts, named as ``SharedState.export_whole`` names them."""
        with self._servers.requests():
            for server, connection in enumerate(self._servers.each):
                connection.begin()
                connection.send(
                    m.Load(self._name), self._state_of(server, state, self._counts(state))
                )
            for connection in self._servers.each:
                done(connection.receive())

    def save(self, into: State | None = None) -> State:
        """Return what :meth:`load` takes, in the tensors of ``into`` where it has them."""
        state = dict(into or {})
        for i, name in self._names():
            layout = self.layouts[i]
            state.setdefault(name, torch.empty(layout.size, dtype=layout.dtype))
        counts = [[torch.empty(len(part)) for part in n.shards] for n in self.layouts]
        self._servers.ask(
            lambda server: m.Save(self._name), lambda server: self._state_of(server, state, counts)
        )
        for i, layout in enumerate(self.layouts):
            steps = torch.zeros(len(layout.places), dtype=torch.float64)
            for part, found in zip(layout.shards, counts[i], strict=True):
                steps[[piece.parameter for piece in part]] = found.double()
            state[f"steps.{i}"] = steps
        return state

    def _names(self) -> list[tuple[int, str]]:
        """Return (layout, name) of each flat tensor, in the order of the wire."""
        layouts = range(len(self.layouts))
        slots = [(i, f"{slot}.{i}") for i in layouts for slot in self._slots]
        return [*((i, f"parameters.{i}") for i in layouts), *slots]

    def _counts(self, state: State) -> list[list[Tensor]]:
        """Return how often each piece was updated, per layout and server."""
        return [
            [state[f"steps.{i}"][[piece.parameter for piece in part]].float() for part in n.shards]
            for i, n in enumerate(self.layouts)
        ]

    def _state_of(self, server: int, state: State, counts: list[list[Tensor]]) -> list[Tensor]:
        flats = [state[name][self._servers.range_of(i, server)] for i, name in self._names()]
        return [*flats, *(parts[server] for parts in counts)]

    def drop(self) -> None:
        self._servers.ask(lambda server: m.Drop(self._name))

    # -- asynchronous ------------------------------------------------------------------------

    def streams(self, gradients: Sequence[Tensor]) -> list[Stream]:
        """Return the streams of a sender, in the order in which ``payloads`` are expected."""
        return [
            (f"{i}.{server}", layout, server, flat[slice(*layout.bounds(server))])
            for server in range(len(self._servers.each))
            for i, (layout, flat) in enumerate(zip(self.layouts, gradients, strict=True))
        ]

    def push(
        self,
        gradients: Sequence[Tensor],
        used: Masks,
        rate_factor: float,
        timing: Timing,
        into: Sequence[Tensor] = (),
        payloads: Sequence[Payload] | None = None,
        codec: CodecSpec | None = None,
        origin: tuple[int, int] = (-1, 0),
    ) -> None:
        """Have a gradient applied once; the new parameters are received into ``into``, if given.

        ``payloads`` (see :meth:`streams`), if given, are sent instead of ``gradients``. ``origin``
        is the worker's rank, and how many samples it had been given.
        """
        now, groups = self._clock.now, group_options(self._optimizer)
        began, sent = now(), self._servers.sent
        waited = updated = 0.0
        with self._servers.requests():
            for server, connection in enumerate(self._servers.each):
                asked = now()
                connection.begin()
                waited += now() - asked
                encoded, buffers = self._message(server, gradients, payloads, codec)
                masks = masks_of(used, self.layouts, server)
                push = m.Push(self._name, groups, masks, rate_factor, encoded, bool(into), *origin)
                connection.send(push, buffers)
            for server, connection in enumerate(self._servers.each):
                answer = self._servers.take(server, into)
                waited, updated = waited + answer.waited, updated + answer.updated
                timing.staleness = max(timing.staleness, answer.before - connection.seen)
        timing.wait += waited
        timing.update += updated
        timing.send += max(0.0, now() - began - waited - updated)
        timing.bytes_sent += self._servers.sent - sent

    def fence(self, rank: int) -> list[int]:
        """Stop a lost worker's pushes; return, per server, its samples applied so far."""
        answers = self._servers.ask(lambda server: m.Fence(self._name, rank))
        return [answer.total for answer in answers if isinstance(answer, m.Fenced)]

    def pull(self, into: Sequence[Tensor]) -> None:
        """Fetch the newest parameters from the servers that have newer ones."""
        with self._servers.requests():
            for connection in self._servers.each:
                connection.begin()
                connection.send(m.Pull(self._name, connection.version))
            for server in range(len(self._servers.each)):
                self._servers.take(server, into)

    # -- synchronous -------------------------------------------------------------------------

    def contribute(
        self,
        share: Share,
        gradients: Sequence[Tensor],
        timing: Timing,
        into: Sequence[Tensor],
        payloads: Sequence[Payload] | None = None,
        codec: CodecSpec | None = None,
    ) -> None:
        """Contribute a share of a step, and wait until the step is taken."""
        now, began, before = self._clock.now, self._clock.now(), self._servers.sent
        with self._servers.requests():
            connections = self._servers.each
            for connection in connections:
                connection.begin()
            for place in range(len(connections)):
                # All contribute at once, so each begins with another server.
                server = (share.rank + place) % len(connections)
                encoded, buffers = self._message(server, gradients, payloads, codec)
                request = self._contribution(share, server, encoded)
                connections[server].send(request, [] if share.empty else buffers)
            sent = now()
            self._finish(share.step, share.clip, into)
        timing.send += sent - began
        timing.wait += now() - sent
        timing.bytes_sent += self._servers.sent - before

    def _contribution(self, share: Share, server: int, encoded: m.Encoded | None) -> m.Contribute:
        alone = len(self._servers.each) == 1
        return m.Contribute(
            self._name,
            share.step,
            list(share.expected),
            share.rank,
            share.weight,
            group_options(self._optimizer),
            masks_of(share.used, self.layouts, server),
            clip=share.clip if alone else None,
            norm=share.clip is not None and not alone,
            encoded=None if share.empty else encoded,
            empty=share.empty,
        )

    def _finish(self, step: int, clip: float | None, into: Sequence[Tensor]) -> None:
        """Receive the step's parameters; with ``clip`` first agree on the whole gradient's norm."""
        if clip is not None and len(self._servers.each) > 1:
            answers = [connection.receive() for connection in self._servers.each]
            squares = sum(a.value for a in answers if isinstance(a, m.Squares))
            for connection in self._servers.each:
                connection.send(m.Commit(self._name, step, clip_factor(squares, clip)))
        for server in range(len(self._servers.each)):
            self._servers.take(server, into)

    def _message(
        self,
        server: int,
        gradients: Sequence[Tensor],
        payloads: Sequence[Payload] | None,
        codec: CodecSpec | None,
    ) -> tuple[m.Encoded | None, list[Tensor]]:
        if payloads is None or codec is None:
            return None, [
                flat[self._servers.range_of(i, server)] for i, flat in enumerate(gradients)
            ]
        count = len(self.layouts)
        mine = payloads[server * count : (server + 1) * count]
        index = self._codecs.index(codec.label)
        return encoded_of(index, mine), [tensor for p in mine for tensor in p.tensors]


_LEFT_OUT = ("params", "capturable", "differentiable")
"""Options that are not sent: they say how and where the user's process runs its optimizer."""
_FIRST_VALUES = ("initial_accumulator_value",)


def describe(
    optimizer: torch.optim.Optimizer, layouts: Sequence[Layout], server: int, codecs: Sequence[str]
) -> m.Description:
    """Describe what ``server`` keeps; ``layouts`` have one shard per server."""
    defaults = optimizer.defaults
    return m.Description(
        optimizer=type(optimizer).__name__,
        first_values={name: defaults[name] for name in _FIRST_VALUES if name in defaults},
        groups=group_options(optimizer),
        layouts=[_layout(layout, server) for layout in layouts],
        codecs=list(codecs),
    )


def group_options(optimizer: torch.optim.Optimizer) -> list[m.Options]:
    """Return each group's options as plain values, without what the user has added to them."""
    return [
        {
            name: _plain(value)
            for name, value in group.items()
            if name in optimizer.defaults and name not in _LEFT_OUT
        }
        for group in optimizer.param_groups
    ]


def _plain(value: object) -> m.Option:
    if isinstance(value, Tensor):
        return float(value)
    if isinstance(value, tuple | list):
        return [float(number) for number in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"an optimizer's option {value!r} is not a plain value")


def _layout(layout: Layout, server: int) -> m.LayoutOf:
    pieces = [
        m.PieceOf(piece.end - piece.start, piece.group, part.columns, part.offset)
        for piece, part in zip(layout.shards[server], parts_of(layout, server), strict=True)
    ]
    return m.LayoutOf(type_name(layout.dtype), pieces)


def type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def masks_of(used: Masks, layouts: Sequence[Layout], server: int) -> list[bytes | None]:
    """Turn ``used``, a mask by parameter, into a mask of the pieces that ``server`` keeps."""
    return [
        None if mask is None else bytes(mask[piece.parameter] for piece in layout.shards[server])
        for mask, layout in zip(used, layouts, strict=True)
    ]


def encoded_of(codec: int, payloads: Sequence[Payload]) -> m.Encoded:
    """Make the header that announces ``payloads`` (one per layout)."""
    return m.Encoded(
        codec,
        [[m.TensorOf(type_name(t.dtype), list(t.shape)) for t in p.tensors] for p in payloads],
    )
