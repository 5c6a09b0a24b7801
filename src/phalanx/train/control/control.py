"""Figures, shares and commands: what all workers of a training have to decide alike.

In lockstep everybody hears the same at the meetings and draws the same conclusions. Where workers
run freely the first one watches for all: it writes shares on the board, and cuts the counter of
samples so that everybody comes to the command that it has posted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from phalanx.core.spec import Spec
from phalanx.sync.arena.arena import Arena
from phalanx.sync.policy.balance import Change
from phalanx.sync.policy.leases import SharedClaims
from phalanx.train.control.balancing import LOOK_EVERY, SpeedWatch
from phalanx.train.control.command_cells import Command, CommandCells, Kind
from phalanx.train.control.rendezvous import BUSY, CUT, SAMPLES, SPEED, STEPS, WHOLE, Rendezvous
from phalanx.train.loop.active_phase import ActivePhase

Watcher = Callable[[], Command | None]


class Control:
    """``tell`` is called, on every worker, with what was found out about shares."""

    def __init__(
        self,
        arena: Arena,
        meeting: Rendezvous,
        claims: SharedClaims,
        tell: Callable[[Change], None],
        *,
        balance: bool,
    ) -> None:
        self._arena, self._meeting, self._claims, self._tell = arena, meeting, claims, tell
        self.watch = SpeedWatch(arena.workers, balance=balance)
        self._board = CommandCells(arena)
        self._taken = self._heard = 0
        self._rebalanced = False
        self.fixed = False
        """The pass under way keeps its shares."""
        self._lockstep = True
        meeting.hear = self._hear

    @property
    def _first(self) -> bool:
        return self._arena.rank == 0

    @property
    def speeds(self) -> list[float]:
        """Of all workers; 0 is unknown, and what a worker that is gone told last is of no use."""
        lost = self._arena.lost
        told = self._board.figures[:, SPEED]
        return [0.0 if r in lost else float(speed) for r, speed in enumerate(told)]

    @property
    def free_shares(self) -> list[float]:
        """For workers that do not meet: as the first one sees them."""
        return [float(share) for share in self._board.shares]

    # -- phases ------------------------------------------------------------------------------

    def enter(self, stage: ActivePhase, spec: Spec, *, regroup: bool) -> None:
        self._lockstep = stage.lockstep
        by_speed = stage.phase.options.get("by") == "speed" and not regroup
        self.watch.enter(stage.phase, spec, by_speed)
        self._share_out()

    def follow(self, stage: ActivePhase, spec: Spec) -> None:
        """The same phase under another spec: it may be watched otherwise."""
        self.watch.follow(stage.phase, spec)
        self._share_out()

    def leave(self) -> None:
        """A phase is over, and everybody stands still."""
        if not self._lockstep:  # only the first worker has watched the speeds until now
            self.watch.shares = self.free_shares

    # -- speeds ------------------------------------------------------------------------------

    def measured(self, samples: int, seconds: float) -> None:
        """This worker has computed."""
        self.watch.meter.add(samples, seconds)
        figures = self._meeting.figures
        if samples:  # a second optimizer's step over the same ones is part of it
            figures[STEPS] += 1
        figures[SAMPLES] += samples
        figures[BUSY] += seconds
        figures[WHOLE] += seconds
        if not self._lockstep or figures[STEPS] % LOOK_EVERY == 0:
            figures[SPEED] = self.watch.meter.value
            self._board.figures[self._arena.rank] = figures

    def exchanged(self, seconds: float) -> None:
        """And has then exchanged what it computed, and waited for others."""
        self._meeting.figures[WHOLE] += seconds

    def use_shares(self) -> list[float]:
        """The shares of the stretch that begins in lockstep."""
        self._tell_decided()
        self._rebalanced = False
        return self.watch.shares

    def _tell_decided(self) -> None:
        for change in self.watch.decided:
            self._tell(change)
        self.watch.decided.clear()

    def _share_out(self) -> None:
        if self._first:
            self._board.shares[:] = self.watch.shares

    # -- commands ----------------------------------------------------------------------------

    def _hear(self, figures: Any, command: int) -> None:
        """At a meeting of all: everybody hears the same, and decides the same."""
        self._heard = command
        if not self._lockstep:
            return
        self._rebalanced |= not self.fixed and self.watch.new_shares(figures)
        if self._first:
            self._post(self.watch.verdict(figures[:, SPEED], self._arena.pace.now()))

    def look(self, watcher: Watcher | None, *, told_to_stop: bool = False) -> None:
        """The first worker looks for commands, and after those who do not meet."""
        if told_to_stop:
            self._board.ask_to_stop()
        if not self._first:
            return
        if self._board.number > self._taken:
            if not self._lockstep:
                self._claims.cut()  # again: there was nothing left to cut the last time
            return
        if self._board.stop_is_asked:
            self._post(Command(Kind.STOP))
            return
        self._post(watcher() if watcher else None)
        if not self._lockstep:
            if self.watch.new_shares(self._board.figures, self._arena.lost):
                self._share_out()
                self._tell_decided()
            self._post(self.watch.verdict(self.speeds, self._arena.pace.now()))

    def _post(self, command: Command | None) -> None:
        if command is None or self._board.number > self._taken:
            return
        self._board.post(command)
        self._meeting.command = self._board.number
        if not self._lockstep:
            self._claims.cut()

    @property
    def cut(self) -> bool:
        """In lockstep: the stretch under way ends with the batch in hand."""
        return self._lockstep and (self._rebalanced or self._commanded)

    @property
    def _commanded(self) -> bool:
        return self._heard > self._taken

    def after_stretch(
        self, ticket: int, position: int, rest: Callable[[], None]
    ) -> tuple[int, Command | None]:
        """How far the data have been used, and the command to take there, if any."""
        if self._lockstep:
            self.use_shares()
            if not self._commanded:
                return position, None
        else:
            if not self._claims.is_cut(ticket):
                return position, None
            rest()
            self._meeting.meet(CUT)
            position = self._claims.position
        command, self._taken = self._board.read(), self._board.number
        self._arena.barrier()  # nobody posts the next before everybody has read this one
        return position, command
