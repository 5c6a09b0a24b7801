"""Speeds, shares and commands: what all workers of a training have to decide alike.

In lockstep everybody hears the same at the meetings and draws the same conclusions. Where workers
run freely the first one watches for all: it writes shares on the board, and cuts the counter of
samples so that everybody comes to the command that it has posted.
"""

from __future__ import annotations

from collections.abc import Callable

from phalanx.core.spec import Spec
from phalanx.sync.claims import SharedClaims
from phalanx.sync.transport.arena import Arena
from phalanx.train.balancing import Watch
from phalanx.train.board import Board, Command, Kind
from phalanx.train.meeting import CUT, Meeting
from phalanx.train.stage import Stage

Watcher = Callable[[], Command | None]


class Control:
    """``tell`` is called, on every worker, with shares that are new."""

    def __init__(
        self,
        arena: Arena,
        meeting: Meeting,
        claims: SharedClaims,
        tell: Callable[[list[float]], None],
        *,
        balance: bool,
    ) -> None:
        self._arena, self._meeting, self._claims, self._tell = arena, meeting, claims, tell
        self.watch = Watch(arena.workers, balance=balance)
        self._board = Board(arena)
        self._taken = self._heard = 0
        self._rebalanced = False
        self.fixed = False
        """The pass under way keeps its shares."""
        self._lockstep, self._every = True, 0
        meeting.hear = self._hear

    @property
    def _first(self) -> bool:
        return self._arena.rank == 0

    @property
    def speeds(self) -> list[float]:
        """Of all workers; 0 is unknown, and what a worker that is gone told last is of no use."""
        lost = self._arena.lost
        return [0.0 if r in lost else float(speed) for r, speed in enumerate(self._board.speeds)]

    @property
    def free_shares(self) -> list[float]:
        """For workers that do not meet: as the first one sees them."""
        return [float(share) for share in self._board.shares]

    # -- phases ------------------------------------------------------------------------------

    def enter(self, stage: Stage, spec: Spec, *, regroup: bool) -> None:
        self._lockstep, self._every = stage.lockstep, stage.every
        by_speed = stage.phase.options.get("by") == "speed" and not regroup
        self.watch.enter(stage.phase, spec, by_speed)
        self._share_out()

    def follow(self, stage: Stage, spec: Spec) -> None:
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
        if not samples:
            return
        self.watch.meter.add(samples, seconds)
        self._meeting.speed = self._board.speeds[self._arena.rank] = self.watch.meter.value

    def use_shares(self) -> list[float]:
        """The shares of the stretch that begins in lockstep."""
        if self._rebalanced:
            self._tell(list(self.watch.shares))
        self._rebalanced = False
        return self.watch.shares

    def _share_out(self) -> None:
        if self._first:
            self._board.shares[:] = self.watch.shares

    # -- commands ----------------------------------------------------------------------------

    def _hear(self, speeds: list[float], command: int) -> None:
        """At a meeting of all: everybody hears the same, and decides the same."""
        self._heard = command
        if not self._lockstep:
            return
        self._rebalanced |= not self.fixed and self.watch.new_shares(speeds, max(1, self._every))
        if self._first:
            self._post(self.watch.verdict(speeds, self._arena.pace.now()))

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
            speeds = self.speeds
            if self.watch.new_shares(speeds):
                self._share_out()
                self._tell(list(self.watch.shares))
            self._post(self.watch.verdict(speeds, self._arena.pace.now()))

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
