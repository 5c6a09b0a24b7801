"""Computes the virtual time of exchanges in a simulated cluster, from its links and servers.

Links and servers handle one request after another, in order. The scheduler runs workers in the
order of their times, so that a worker that asks is never earlier than one that asked before.
"""

from __future__ import annotations

from phalanx.core.settings import VirtualCluster
from phalanx.policies.collective_choice import exchange_seconds
from phalanx.policies.collective_cost import LinkSpeed
from phalanx.sync.arena.clock import Members, Toll
from phalanx.sync.arena.memory_arena import ThreadArena

FAST = 1e15
"""Bytes per second that stand for a link that takes no time."""


class SimulatedNetwork(Toll):
    """Models links and servers. The ``shards`` are dealt to the servers in turn."""

    charges = True

    def __init__(self, arena: ThreadArena, cluster: VirtualCluster, shards: int) -> None:
        self._arena, self._cluster, self._busy = arena, cluster, arena.hub.busy_until
        self._me, self._home = cluster.workers[arena.rank], cluster.home(arena.rank)
        self._servers = [cluster.servers[s * len(cluster.servers) // shards] for s in range(shards)]
        """The worker on whose machine each shard's server is."""
        self._several = max(1.0, len(cluster.servers) / shards)
        """How many servers share a shard; their links and processors work side by side."""
        self._slowest = LinkSpeed(cluster.latency, cluster.slowest_link or FAST)
        """The bandwidth of the slowest link, which limits a collective."""
        self._known: dict[tuple[Members, float, str | None, bool], float] = {}
        self._sending = False
        self._done = self._back = self._arrives = self._updates = 0.0
        self.apart = cluster.has_links

    def all_reduce(
        self, members: Members, count: float, topology: str | None = None, *, coded: bool = False
    ) -> None:
        key = (members, count, topology, coded)
        if self.apart and key not in self._known:
            hosts = len({self._cluster.home(rank) for rank in members})
            self._known[key] = exchange_seconds(topology, hosts, count, self._slowest, coded=coded)
        self._arena.charge(self._known.get(key, 0.0))

    def update(self) -> None:
        self._arena.charge(self._me.update)

    def request(self, shard: int, count: float, update: float = 0.0) -> float:
        server, now = self._servers[shard], self._arena.pace.now()
        first, self._sending = not self._sending, True
        # Only the first part waits for the latency; the others follow at once.
        came = now + (self._latency(server) if first else 0.0)
        came = self._carry("in", server, came, count)
        if came > now:  # another worker's request may arrive earlier, and is served first
            self._arena.sleep(came - now)
        begin, seconds = self._serve(server, came, update)
        self._updates += seconds
        if begin > came:
            self._arena.sleep(begin - came)
        return came - now

    def serve(self, shard: int, update: float) -> None:
        now = self._arena.pace.now()
        begin, seconds = self._serve(self._servers[shard], now, update)
        self._arena.sleep(begin + seconds - now)

    def _serve(self, server: int, came: float, update: float) -> tuple[float, float]:
        """Return when the server begins with an update, and how long it takes."""
        begin = max(came, self._busy["update", server])
        seconds = update * self._cluster.workers[server].update / self._several
        self._done = self._busy["update", server] = begin + seconds
        return begin, seconds

    def reply(self, shard: int, count: float) -> None:
        # Answers pass this worker's own link one after another.
        server, earliest = self._servers[shard], max(self._arena.pace.now(), self._done, self._back)
        self._back = self._carry("out", server, earliest, count)
        self._arrives = max(self._arrives, self._back + self._latency(server))

    def settle(self) -> float:
        updates, self._updates, self._sending = self._updates, 0.0, False
        seconds = max(0.0, self._arrives - self._arena.pace.now())
        self._arena.sleep(seconds)
        return min(updates, seconds)

    def _latency(self, server: int) -> float:
        return 0.0 if self._cluster.home(server) == self._home else self._cluster.latency

    def _carry(self, way: str, server: int, earliest: float, count: float) -> float:
        """Return when ``count`` bytes have passed the link of the server."""
        link, machine = self._cluster.workers[server].bandwidth, self._cluster.home(server)
        if link is None or self._me.bandwidth is None or machine == self._home:
            return earliest
        link *= self._several
        begin = max(earliest, self._busy[way, machine])
        # If this worker's link is slower, the server's link has room for others meanwhile.
        self._busy[way, machine] = begin + count / link
        return begin + count / min(link, self._me.bandwidth)
