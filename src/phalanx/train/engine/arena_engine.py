"""``ArenaEngine``: what every training of several workers does through their arena."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from phalanx.policies.balance import ShareChange
from phalanx.sync.arena.arena import Arena, Locks
from phalanx.sync.state.windows import Gathering
from phalanx.train.control import rendezvous as intents
from phalanx.train.control.control import Control
from phalanx.train.engine.engine import Engine
from phalanx.train.engine.sample_leases import EngineListener

if TYPE_CHECKING:
    from phalanx.sync.connect.channel import Channel


class ArenaEngine(Engine):
    """The base of the engines that share an arena; they differ in what their workers share."""

    directives: Control

    def _use(self, arena: Arena, listener: EngineListener) -> None:
        self._arena, self._listener = arena, listener
        self.background = not arena.scripted
        self.near_first = arena.hosts is None or 0 in arena.hosts.here
        self._gathering: Gathering | None = None

    def region(self, name: str, count: int, dtype: torch.dtype) -> Tensor:
        return self._arena.region(name, count, dtype)

    def lock(self, index: int) -> AbstractContextManager[object]:
        return self._arena.lock(index)

    def meet(self, intent: int) -> None:
        self.directives.meet(intent)

    def barrier(self) -> None:
        self._arena.barrier()

    def first_decides(self, mine: bool) -> bool:
        self.rest()
        self.meet(intents.DECIDE)
        ((decided,),) = self.gather(bytes([mine]) if self._arena.rank == 0 else None)
        return bool(decided)

    def gather(self, mine: bytes | None) -> list[bytes]:
        if self._gathering is None:
            self._gathering = Gathering(self._arena)
        return self._gathering.gather(mine)

    def pause(self) -> None:
        self._arena.pause()

    def _tell_shares(self, change: ShareChange) -> None:
        if self._arena.rank == 0:
            self._listener.shares_changed(change)

    def begin_epoch(self, epoch: int) -> bool:
        with self.lock(Locks.STOP):
            return super().begin_epoch(epoch)

    def request_stop(self, epoch: int) -> None:
        with self.lock(Locks.STOP):
            super().request_stop(epoch)

    def leave(self) -> None:
        self.rest()
        self._arena.rewind()

    def channels_with_first(self) -> dict[int, Channel]:
        hosts = self._arena.hosts
        return {} if hosts is None else hosts.channels_with_first()
