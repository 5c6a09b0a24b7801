"""Workers that push alone: what can be computed by hand, and which engine is asked."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from phalanx.plan.timing import free
from phalanx.plan.timing.flows import fair_rates
from phalanx.plan.timing.free import run_free, run_groups
from phalanx.plan.timing.work import FreeCluster
from phalanx.policies.admission import Dynamic, Free, Rule, Stale
from phalanx.policies.collective_cost import MESSAGE_SECONDS

NO_LIMIT = FreeCluster(
    compute=[0.1, 0.1],
    variation=0.0,
    homes=[0, 1],
    servers=[2],
    push_bytes=1e6,
    reply_bytes=2e6,
    sending=[math.inf] * 3,
    receiving=[math.inf] * 3,
    latency=0.001,
    update=0.0,
)
SLOW_LINKS = replace(NO_LIMIT, sending=[1e7] * 3, receiving=[1e7] * 3)


def alike(workers: int, **changes: object) -> FreeCluster:
    many = replace(
        NO_LIMIT,
        compute=[0.1] * workers,
        homes=range(workers),
        servers=[workers],
        sending=[math.inf] * (workers + 1),
        receiving=[math.inf] * (workers + 1),
    )
    return replace(many, **changes)  # type: ignore[arg-type]


def test_a_step_alone_is_computing_a_push_and_a_reply() -> None:
    alone = replace(SLOW_LINKS, compute=[0.1], homes=[0], update=0.01)
    found = run_free(alone, Free(), 5, seed=0)
    assert found.seconds == pytest.approx(5 * (0.1 + 0.1 + 0.2 + 0.002 + 0.01))
    assert found.staleness.tolist() == [5]


def test_workers_share_the_link_of_the_server() -> None:
    found = run_free(SLOW_LINKS, Free(), 5, seed=0)
    assert found.seconds == pytest.approx(5 * (0.1 + 0.2 + 0.4 + 0.002))
    away = replace(SLOW_LINKS, receiving=[1e7, 1e7, 2e7], sending=[1e7, 1e7, 2e7])
    assert run_free(away, Free(), 5, seed=0).seconds == pytest.approx(5 * (0.1 + 0.3 + 0.002))


def test_what_stays_on_a_machine_uses_no_link() -> None:
    here = replace(SLOW_LINKS, servers=[0])
    found = run_free(here, Free(), 4, seed=0)
    assert found.seconds == pytest.approx(4 * (0.1 + 0.3 + 0.002))  # the one that is away
    assert not replace(here, homes=[0, 0]).limited


def test_two_servers_answer_for_their_parts() -> None:
    both = replace(SLOW_LINKS, compute=[0.1], homes=[0], servers=[1, 2])
    gated = run_free(both, Stale(0), 4, seed=0)
    assert gated.seconds == pytest.approx(4 * (0.1 + 0.3 + 0.002))
    at_once = run_free(both, Free(), 4, seed=0)  # while the second part is still sent
    assert at_once.seconds == pytest.approx(4 * (0.1 + 0.25 + 0.002))


def test_workers_of_a_machine_use_its_connection_one_after_another() -> None:
    found = run_free(replace(SLOW_LINKS, homes=[0, 0]), Free(), 5, seed=0)
    assert found.seconds == pytest.approx(0.1 + 10 * (0.1 + 0.2 + 0.002))
    assert found.waited == pytest.approx([4 * 0.202, 0.302 + 4 * 0.202])
    apart = run_free(replace(SLOW_LINKS, homes=[0, 0]), Stale(1), 5, seed=0)
    assert apart.steps == 10 and apart.seconds > found.seconds - 0.5


def test_fair_rates() -> None:
    links = np.array([[0, 3], [0, 4], [1, 4], [2, 5]])
    capacity = np.array([10.0, 8.0, math.inf, 3.0, 9.0, math.inf])
    assert fair_rates(links, capacity) == pytest.approx([3.0, 4.5, 4.5, math.inf])
    assert fair_rates(links[:1], capacity) == pytest.approx([3.0])
    assert len(fair_rates(links[:0], capacity)) == 0


def test_bounded_workers_wait_for_the_slowest() -> None:
    unlike = replace(NO_LIMIT, compute=[0.1, 0.4], latency=0.0)
    assert run_free(unlike, Free(), 20, seed=0).waited == pytest.approx([0.0, 0.0])
    lockstep = run_free(unlike, Stale(0), 20, seed=0)
    assert lockstep.waited == pytest.approx([6.0, 0.0])
    waits = [run_free(unlike, r, 20, seed=0).waited[0] for r in (Stale(2), Dynamic(2, 8), Stale(8))]
    assert 6.0 > waits[0] > waits[1] >= waits[2] - 1e-9, "a dynamic bound saves waiting"


def test_by_samples_fast_workers_do_more() -> None:
    unlike = replace(NO_LIMIT, compute=[0.1, 0.4], latency=0.0)
    equal, shared = (run_free(unlike, Free(), 20, seed=0, by_samples=b) for b in (False, True))
    assert equal.steps == shared.steps == 40
    assert equal.seconds == pytest.approx(8.0) and shared.seconds == pytest.approx(3.2)
    lost = run_free(unlike, Free(), 20, seed=0, by_samples=True, lost=[(0, 8)])
    assert lost.steps == 40 and lost.seconds == pytest.approx(32 * 0.4)


def test_a_link_carries_what_its_server_and_its_worker_send() -> None:
    servers, speeds = range(50), [1e8] * 101
    links = {"servers": servers, "sending": speeds, "receiving": speeds, "reply_bytes": 1e6}
    queued = alike(100, **links).queued()
    # Of every hundred pushes a server gets a fiftieth each, and its worker one reply.
    assert queued.update * 100 == pytest.approx(3 * 1e6 / 1e8, rel=0.02)
    # A worker without a server sends all and gets all, in fifty messages.
    assert queued.compute[-1] == pytest.approx(0.1 + 2 * 1e6 / 1e8 + 50 * MESSAGE_SECONDS)
    assert queued.compute[0] < queued.compute[-1]


@pytest.mark.parametrize("rule", [Free(), Stale(2)])
def test_large_clusters_take_links_as_queues(monkeypatch: pytest.MonkeyPatch, rule: Rule) -> None:
    speeds = [3e6] * 40 + [6e7]
    links = {"sending": speeds, "receiving": speeds, "push_bytes": 2e5, "reply_bytes": 2e5}
    cluster = alike(40, variation=0.2, **links)
    shared = run_free(cluster, rule, 30, seed=0)
    monkeypatch.setattr(free, "MOST_FLOWS", 0)
    queued = run_free(cluster, rule, 30, seed=0)
    assert queued.seconds == pytest.approx(shared.seconds, rel=0.1)


def test_groups_wait_inside_and_not_between() -> None:
    cluster = replace(NO_LIMIT, compute=[0.1, 0.2, 0.4, 0.5], homes=[0, 0, 1, 1], latency=0.0)
    found = run_groups(cluster, [(0, 1), (2, 3)], [0.05, 0.1], 10, seed=0)
    assert found.waited == pytest.approx([1.0, 0.0, 1.0, 0.0])
    assert found.seconds == pytest.approx(10 * 0.6) and found.steps == 40
