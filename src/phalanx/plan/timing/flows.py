"""Events and transfers, for small clusters whose links are a limit.

Pushes and replies are flows. All flows of a link, in one direction, share it so that no flow could
be faster without a slower one becoming slower still (max-min fairness: Bertsekas and Gallager,
"Data networks", 1992). Rates change only when a flow begins or ends.
"""

from __future__ import annotations

import heapq
import math
from collections import deque

import numpy as np
from numpy.typing import NDArray

from phalanx.plan.timing.cluster import FreeCluster
from phalanx.plan.timing.gate import Gate
from phalanx.plan.timing.work import Floats, Ints, Outcome, Trace, Work
from phalanx.rules.admission import Free, Rule

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
        """Take away what has ended by ``now``, which is :meth:`next_end`."""
        done = np.flatnonzero(self._ends <= now)
        self._settle(now)
        self._active[done], self._ends[done], self._rate[done] = False, NEVER, 0.0
        return done.tolist()

    def _settle(self, now: float) -> None:
        """What was sent until ``now``, at the rates so far."""
        if now > self._then:
            self._left -= self._rate * (now - self._then)
            np.maximum(self._left, 0.0, out=self._left)
            self._then = now
        self._stale = True


APPLIED, ARRIVED, ANSWERED, READY = range(4)
"""Kinds of events; at the same moment they come in this order."""


def run_flows(work: Work, rule: Rule, cluster: FreeCluster, trace: Trace | None = None) -> Outcome:
    """As ``sync.store.remote`` does it: parts are sent to one server after another, and a machine
    has one connection to each server, on which one request of its workers follows another."""
    return _Run(work, rule, cluster, trace).run()


class _Run:
    def __init__(self, work: Work, rule: Rule, cluster: FreeCluster, trace: Trace | None) -> None:
        self._work, self._cluster, self._trace = work, cluster, trace
        workers, self._parts = work.workers, len(cluster.servers)
        self._gate, self._at_once = Gate(rule, workers), isinstance(rule, Free)
        """Without a gate each server answers when it has applied its part."""
        self._flows = Flows(
            workers * (1 + self._parts),
            np.asarray(cluster.sending, np.float64),
            np.asarray(cluster.receiving, np.float64),
        )
        self._push = cluster.push_bytes / self._parts
        self._reply = cluster.reply_bytes / self._parts
        self._events: list[tuple[float, int, int, int, float]] = []
        self._connections: dict[tuple[int, int], deque[tuple[int, int, float]]] = {}
        """Those in use, of a machine to a server, and who waits for them."""
        self._free, self._versions = [0.0] * self._parts, [0] * self._parts
        self._seen = [[0] * self._parts for _ in range(workers)]
        self._sent, self._applied, self._answered = [0] * workers, [0] * workers, [0] * workers
        self._started, self._base, self._late = [0.0] * workers, [0] * workers, [0] * workers
        self._goes_on = [True] * workers
        self._waited = np.zeros(workers)
        self._staleness: list[int] = []
        self._now, self._pushes, self._seconds = 0.0, 0, 0.0

    def run(self) -> Outcome:
        handlers = self._apply, self._reach, self._answer, self._ready
        for rank in range(self._work.workers):
            if self._work.more(rank, 0):
                self._compute(rank, 0)
            else:
                self._gate.leave(rank)
        while True:
            event, flow = self._events[0][0] if self._events else NEVER, self._flows.next_end()
            if event == flow == NEVER:
                break
            self._now = min(event, flow)
            if flow < event:
                for place in self._flows.ended(flow):
                    self._arrive(place)
            else:
                _, kind, rank, server, queued = heapq.heappop(self._events)
                handlers[kind](rank, server, queued)
        return Outcome(self._seconds, self._pushes, self._waited, np.bincount(self._staleness))

    def _at(self, when: float, kind: int, rank: int, server: int = 0, queued: float = 0) -> None:
        heapq.heappush(self._events, (when, kind, rank, server, queued))

    def _ready(self, rank: int, server: int, queued: float) -> None:
        self._sent[rank] = 0
        self._send_next(rank)

    def _reach(self, rank: int, server: int, queued: float) -> None:
        begun = max(self._now, self._free[server])
        self._free[server] = begun + self._cluster.update
        self._at(self._free[server], APPLIED, rank, server, begun - self._now)

    def _compute(self, rank: int, step: int) -> None:
        self._started[rank] = self._now
        self._at(self._now + self._work.draws.one(rank, step), READY, rank)

    def _send_next(self, rank: int) -> None:
        if (server := self._sent[rank]) < self._parts:
            self._request(rank, server, rank)

    def _place(self, rank: int, server: int) -> int:
        """Of a reply; that of a push is the rank."""
        return self._work.workers + rank * self._parts + server

    def _request(self, rank: int, server: int, place: int) -> None:
        """When the connection is free: of a push, or of a reply alone."""
        waiting = self._connections.get((self._cluster.homes[rank], server))
        if waiting is not None:
            waiting.append((rank, place, self._now))
            return
        self._connections[self._cluster.homes[rank], server] = deque()
        self._transfer(rank, server, place)

    def _release(self, rank: int, server: int) -> None:
        connection = self._cluster.homes[rank], server
        if waiting := self._connections[connection]:
            other, place, since = waiting.popleft()
            self._waited[other] += self._now - since
            self._transfer(other, server, place)
        else:
            del self._connections[connection]

    def _transfer(self, rank: int, server: int, place: int) -> None:
        ends, size = (self._cluster.homes[rank], self._cluster.servers[server]), self._push
        if place != rank:
            ends, size = ends[::-1], self._reply
        if size > 0 and self._flows.takes_time(*ends):
            self._flows.begin(place, *ends, size, self._now)
        else:
            self._arrive(place)

    def _arrive(self, place: int) -> None:
        """The last byte has left; it is there after the latency."""
        there, workers = self._now + self._cluster.latency, self._work.workers
        if place >= workers:
            rank, server = divmod(place - workers, self._parts)
            self._at(there, ANSWERED, rank, server)
            return
        self._at(there, ARRIVED, place, self._sent[place])
        self._sent[place] += 1
        self._send_next(place)

    def _apply(self, rank: int, server: int, queued: float) -> None:
        late = self._versions[server] - self._seen[rank][server]
        self._late[rank] = max(self._late[rank], late)
        self._versions[server] += 1
        self._applied[rank] += 1
        if self._at_once:
            self._seen[rank][server] = self._versions[server]
            self._transfer(rank, server, self._place(rank, server))
        else:
            self._release(rank, server)
        if self._applied[rank] < self._parts:
            return
        self._staleness.append(self._late[rank])
        self._waited[rank] += queued
        self._applied[rank] = self._late[rank] = 0
        self._pushes += 1
        self._admit(self._gate.pushed(rank, self._now))

    def _admit(self, admitted: list[tuple[int, float]]) -> None:
        for rank, since in admitted:
            self._waited[rank] += self._now - since
            step = self._gate.steps[rank]
            if self._trace is not None:
                self._trace(rank, step - 1, self._started[rank], self._now, self._base[rank])
            self._base[rank] = self._pushes
            self._goes_on[rank] = self._work.more(rank, step)
            if not self._at_once:
                self._seen[rank] = list(self._versions)
                for server in range(self._parts):
                    self._request(rank, server, self._place(rank, server))
            if not self._goes_on[rank]:
                self._gate.leave(rank)

    def _answer(self, rank: int, server: int, queued: float) -> None:
        self._release(rank, server)
        self._answered[rank] += 1
        if self._answered[rank] < self._parts:
            return
        self._answered[rank] = 0
        if self._goes_on[rank]:
            self._compute(rank, self._gate.steps[rank])
        else:
            self._seconds = max(self._seconds, self._now)
