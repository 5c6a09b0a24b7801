"""Simulates events and transfers, for small clusters whose links are a limit.

Pushes and replies are flows. All flows of a link, in one direction, share it so that no flow could
be faster without a slower one becoming slower still (max-min fairness: Bertsekas and Gallager,
"Data networks", 1992). Rates change only when a flow begins or ends.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Generator

import numpy as np
from numpy.typing import NDArray

from phalanx.plan.timing.gate import Gate
from phalanx.plan.timing.work import Floats, FreeCluster, Ints, Outcome, Trace, Work
from phalanx.policies.admission import Free, Rule

NEVER = math.inf


def fair_rates(links: Ints, capacity: Floats) -> Floats:
    """The rate of each flow, which uses two links: its row of ``links``."""
    rates, left = np.full(len(links), NEVER), capacity.copy()
    open_ = np.arange(len(links))
    while len(open_):
        users = np.bincount(links[open_].ravel(), minlength=len(left))
        shares = np.full(len(left), NEVER)
        np.divide(left, users, out=shares, where=users > 0)
        least = float(shares.min())
        if least == NEVER:
            break
        full = shares <= least * (1 + 1e-12)
        fixed = full[links[open_]].any(axis=1)
        rates[open_[fixed]] = least
        used = np.bincount(links[open_[fixed]].ravel(), minlength=len(left))
        left -= np.where(used > 0, least * used, 0.0)
        open_ = open_[~fixed]
    return rates


class Flows:
    """Transfers under way, each in a place of its own."""

    def __init__(self, places: int, sending: Floats, receiving: Floats) -> None:
        self._capacity = np.concatenate([sending, receiving])
        self._machines = len(sending)
        self._links = np.zeros((places, 2), np.int64)
        self._left, self._rate = np.zeros(places), np.zeros(places)
        self._ends: Floats = np.full(places, NEVER)
        self._active: NDArray[np.bool_] = np.zeros(places, bool)
        self._then, self._stale = 0.0, False

    def takes_time(self, source: int, target: int) -> bool:
        ways = self._capacity[[source, self._machines + target]]
        return source != target and bool(np.isfinite(ways).any())

    def begin(self, place: int, source: int, target: int, size: float, now: float) -> None:
        self._settle(now)
        self._links[place] = source, self._machines + target
        self._left[place], self._active[place] = size, True

    def next_end(self) -> float:
        if self._stale:
            where = np.flatnonzero(self._active)
            self._rate[where] = fair_rates(self._links[where], self._capacity)
            self._ends[where] = self._then + self._left[where] / self._rate[where]
            self._stale = False
        return float(self._ends.min())

    def ended(self, now: float) -> list[int]:
        """Remove and return the flows that end at ``now``, which is :meth:`next_end`."""
        done = np.flatnonzero(self._ends <= now)
        self._settle(now)
        self._active[done], self._ends[done], self._rate[done] = False, NEVER, 0.0
        return done.tolist()

    def _settle(self, now: float) -> None:
        """Subtract what was sent until ``now`` at the present rates."""
        if now > self._then:
            self._left -= self._rate * (now - self._then)
            np.maximum(self._left, 0.0, out=self._left)
            self._then = now
        self._stale = True


APPLIED, ARRIVED, ANSWERED, READY = range(4)
"""Kinds of events; at the same moment they come in this order."""

Waiting = deque["Process"]
Process = Generator[tuple[float, int, int, int] | int | Waiting]
"""What a worker or a server does, up to where it waits: for an event (when, kind, rank, server),
for the end of the transfer in a place, or for a connection."""


def run_flows(work: Work, rule: Rule, cluster: FreeCluster, trace: Trace | None = None) -> Outcome:
    """Plays pushes as ``sync.store.remote`` sends them.

    Parts are sent to one server after another, and a machine has one connection to each server, on
    which one request of its workers follows another.
    """
    return _Run(work, rule, cluster, trace).run()


class _Run:
    def __init__(self, work: Work, rule: Rule, cluster: FreeCluster, trace: Trace | None) -> None:
        self._work, self._cluster, self._trace = work, cluster, trace
        workers, self._parts = work.workers, len(cluster.servers)
        self._gate, self._at_once = Gate(rule, workers), isinstance(rule, Free)
        """``_at_once``: without a gate, each server answers as soon as it has applied its part."""
        ways = (np.asarray(speeds, np.float64) for speeds in (cluster.sending, cluster.receiving))
        self._flows, self._moving = Flows(workers * (1 + self._parts), *ways), dict[int, Process]()
        self._events: list[tuple[float, int, int, int, Process]] = []
        self._connections: dict[tuple[int, int], Waiting] = {}
        """Connections in use, from a machine to a server, and the workers that wait for them."""
        self._free, self._versions = [0.0] * self._parts, [0] * self._parts
        self._seen = [[0] * self._parts for _ in range(workers)]
        self._applied, self._answered, self._late = [0] * workers, [0] * workers, [0] * workers
        self._started, self._base, self._goes_on = [0.0] * workers, [0] * workers, [True] * workers
        self._waited, self._staleness = np.zeros(workers), list[int]()
        self._now, self._pushes, self._seconds = 0.0, 0, 0.0

    def run(self) -> Outcome:
        for rank in range(self._work.workers):
            if self._work.more(rank, 0):
                self._go_on(self._step(rank, 0))
            else:
                self._gate.leave(rank)
        while True:
            event, flow = self._events[0][0] if self._events else NEVER, self._flows.next_end()
            if event == flow == NEVER:
                break
            self._now = min(event, flow)
            if flow < event:
                for place in self._flows.ended(flow):
                    self._go_on(self._moving.pop(place))
            else:
                self._go_on(heapq.heappop(self._events)[-1])
        return Outcome(self._seconds, self._work.done, self._waited, np.bincount(self._staleness))

    def _go_on(self, process: Process) -> None:
        waits_for = next(process, None)
        if isinstance(waits_for, tuple):
            heapq.heappush(self._events, (*waits_for, process))
        elif isinstance(waits_for, int):
            self._moving[waits_for] = process
        elif waits_for is not None:
            waits_for.append(process)

    def _step(self, rank: int, step: int) -> Process:
        self._started[rank] = self._now
        yield self._now + self._work.draws.one(rank, step), READY, rank, 0
        home, size = self._cluster.homes[rank], self._cluster.push_bytes
        for server, machine in enumerate(self._cluster.servers):
            yield from self._connect(rank, server)
            yield from self._move(rank, home, machine, size)
            self._go_on(self._part(rank, server))

    def _connect(self, rank: int, server: int) -> Process:
        connection, since = (self._cluster.homes[rank], server), self._now
        if connection in self._connections:
            yield self._connections[connection]
            self._waited[rank] += self._now - since
        else:
            self._connections[connection] = deque()

    def _release(self, rank: int, server: int) -> None:
        connection = self._cluster.homes[rank], server
        if waiting := self._connections[connection]:
            self._go_on(waiting.popleft())
        else:
            del self._connections[connection]

    def _move(self, place: int, source: int, target: int, size: float) -> Process:
        """Sends a server's part until its last byte has left; it arrives a latency later."""
        if size > 0 and self._flows.takes_time(source, target):
            self._flows.begin(place, source, target, size / self._parts, self._now)
            yield place

    def _part(self, rank: int, server: int) -> Process:
        """Applies a server's part of a push; the last part completes the push."""
        yield self._now + self._cluster.latency, ARRIVED, rank, server
        begun = max(self._now, self._free[server])
        queued, self._free[server] = begun - self._now, begun + self._cluster.update
        yield self._free[server], APPLIED, rank, server
        late = self._versions[server] - self._seen[rank][server]
        self._late[rank] = max(self._late[rank], late)
        self._versions[server] += 1
        self._applied[rank] += 1
        if self._at_once:
            self._seen[rank][server] = self._versions[server]
            self._go_on(self._reply(rank, server))
        else:
            self._release(rank, server)
        if self._applied[rank] == self._parts:
            self._staleness.append(self._late[rank])
            self._waited[rank] += queued
            self._applied[rank] = self._late[rank] = 0
            self._pushes += 1
            for other, since in self._gate.pushed(rank, self._now):
                self._admit(other, since)

    def _admit(self, rank: int, since: float) -> None:
        self._waited[rank] += self._now - since
        step = self._gate.steps[rank]
        if self._trace is not None:
            self._trace(rank, step - 1, self._started[rank], self._now, self._base[rank])
        self._base[rank] = self._pushes
        self._goes_on[rank] = self._work.more(rank, step)
        if not self._at_once:
            self._seen[rank] = list(self._versions)
            for server in range(self._parts):
                self._go_on(self._reply(rank, server))
        if not self._goes_on[rank]:
            self._gate.leave(rank)

    def _reply(self, rank: int, server: int) -> Process:
        """Sends a server's part of the reply; after the last part the worker goes on."""
        if not self._at_once:
            yield from self._connect(rank, server)
        place = self._work.workers + rank * self._parts + server
        machine, home = self._cluster.servers[server], self._cluster.homes[rank]
        yield from self._move(place, machine, home, self._cluster.reply_bytes)
        yield self._now + self._cluster.latency, ANSWERED, rank, server
        self._release(rank, server)
        self._answered[rank] += 1
        if self._answered[rank] == self._parts:
            self._answered[rank] = 0
            if self._goes_on[rank]:
                self._go_on(self._step(rank, self._gate.steps[rank]))
            else:
                self._seconds = max(self._seconds, self._now)
