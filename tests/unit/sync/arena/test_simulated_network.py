"""What exchanges take of virtual time."""

from __future__ import annotations

from scripted import as_threads

from phalanx.core.settings import VirtualCluster, VirtualWorker
from phalanx.sync.arena.memory_arena import Hub
from phalanx.sync.arena.simulated_network import SimulatedNetwork

RATE, LATENCY, UPDATE = 1000.0, 0.5, 2.0
Times = list[tuple[float, float]]


def _cluster(
    workers: int, home: int | None = None, servers: tuple[int, ...] = (0,)
) -> VirtualCluster:
    one = VirtualWorker(fixed=0.0, each=0.0, update=UPDATE, bandwidth=RATE, home=home)
    return VirtualCluster(workers=[one] * workers, latency=LATENCY, servers=servers)


def _pushes(cluster: VirtualCluster, shards: int = 1, count: float = 1000.0) -> Times:
    """Everybody pushes at once: when its server began with the last part, and when it was over."""
    hub = Hub(len(cluster.workers), lock_seconds=0.0)

    def work(rank: int) -> tuple[float, float]:
        arena = hub.arena(rank)
        toll = SimulatedNetwork(arena, cluster, shards)
        for shard in range(shards):
            toll.request(shard, count / shards, 1.0 / shards)
            began = arena.pace.now()
            toll.reply(shard, count / shards)
        toll.settle()
        return began, arena.pace.now()

    return as_threads(hub, work)


def test_pushes_wait_for_the_link_and_for_the_server_in_turn() -> None:
    times = sorted(_pushes(_cluster(4)))
    assert [began for began, _ in times] == [0.0, 2.0, 4.0, 6.0]
    assert [done for _, done in times] == [2.0, 5.5, 7.5, 9.5]


def test_the_bytes_of_a_slow_worker_leave_room_for_others() -> None:
    one = VirtualWorker(fixed=0.0, each=0.0, bandwidth=RATE)
    slow = VirtualWorker(fixed=0.0, each=0.0, bandwidth=RATE / 100)
    times = _pushes(VirtualCluster(workers=[one, slow, one], servers=(0,)))
    assert times[1][0] <= 101.0 + 1e-9
    assert times[2][0] <= 2.0 + 1e-9


def test_parts_of_a_push_follow_each_other() -> None:
    """A worker that is alone with two servers on another machine."""
    cluster = _cluster(2, servers=(0, 0))
    hub = Hub(2, lock_seconds=0.0)

    def work(rank: int) -> Times:
        toll, now = SimulatedNetwork(hub.arena(rank), cluster, 2), hub.arena(rank).pace.now
        found: Times = []
        for shard in range(2 * rank):
            toll.request(shard, 500.0, 0.5)
            toll.reply(shard, 500.0)
            found.append((now(), 0.0))
        toll.settle()
        return [*found, (now(), 0.0)]

    away = [moment for moment, _ in as_threads(hub, work)[1]]
    # Sent by 1.0 and 1.5; updated by 2.0 and, after the first, by 3.0; back by 3.5, and 0.5 more.
    assert away == [1.0, 2.0, 4.0]
