"""Simulates every rule exactly, event by event, for clusters whose links are no limit."""

from __future__ import annotations

import heapq

import numpy as np

from phalanx.plan.timing.gate import Gate
from phalanx.plan.timing.work import Outcome, Trace, Work
from phalanx.policies.admission import AWAY, Free, Rule, Stale


def run_heap(
    work: Work, rule: Rule, latency: float, update: float, trace: Trace | None = None
) -> Outcome:
    """Simulate a training; servers get equal parts at the same time, so they are one queue."""
    if isinstance(rule, Free | Stale) and trace is None:
        return _run_bounded(work, rule.bound if isinstance(rule, Stale) else AWAY, latency, update)
    gate, workers = Gate(rule, work.workers), work.workers
    pushes, late = list[tuple[float, int]](), list[int]()  # pushes: time, worker
    started, waited, seen = [0.0] * workers, [0.0] * workers, [0] * workers
    free, seconds = -latency, 0.0  # workers begin at 0 and have waited for nothing
    admitted = [(rank, free) for rank in range(workers)]
    while True:
        for other, since in admitted:
            waited[other] += free - since
            step = gate.steps[other]
            if trace is not None and step:
                trace(other, step - 1, started[other], free, seen[other])
            seen[other], started[other] = len(late), free + latency
            if work.more(other, step):
                arrives = started[other] + work.draws.one(other, step) + latency
                heapq.heappush(pushes, (arrives, other))
            else:
                seconds = max(seconds, started[other])
                gate.leave(other)
        if not pushes:
            return Outcome(seconds, work.done, np.asarray(waited), np.bincount(late))
        arrived, rank = heapq.heappop(pushes)
        waited[rank] += max(0.0, free - arrived)
        free = max(free, arrived) + update
        late.append(len(late) - seen[rank])
        admitted = gate.pushed(rank, free)


def _run_bounded(work: Work, bound: int, latency: float, update: float) -> Outcome:
    """Plays the case of one bound for all, at twice the speed, because it needs no gate.

    Workers that are too far ahead wait until no worker has the lowest clock any more.
    """
    workers, more, draw, replace = work.workers, work.more, work.draws.one, heapq.heapreplace
    pushes, late, held = list[tuple[float, int]](), list[int](), list(range(workers))
    lowest = holders = version = 0
    free, seconds = -latency, 0.0
    steps, seen, waited, since = [0] * workers, [0] * workers, [0.0] * workers, [free] * workers
    while pushes or held:
        if not holders:
            for other in sorted(held):
                waited[other] += free - since[other]
                if more(other, steps[other]):
                    seen[other], arrives = version, free + latency + draw(other, steps[other])
                    heapq.heappush(pushes, (arrives + latency, other))
                else:
                    seconds, steps[other] = max(seconds, free + latency), AWAY
            held.clear()
            lowest = min(steps)
            holders = steps.count(lowest)
            continue
        arrived, rank = pushes[0]
        if arrived < free:
            waited[rank] += free - arrived
            free += update
        else:
            free = arrived + update
        late.append(version - seen[rank])
        version += 1
        steps[rank] = step = steps[rank] + 1
        holders -= step - 1 == lowest
        if step - lowest > bound and holders:
            since[rank] = free
            held.append(heapq.heappop(pushes)[1])
        elif more(rank, step):
            seen[rank] = version
            replace(pushes, (free + latency + draw(rank, step) + latency, rank))
        else:
            heapq.heappop(pushes)
            seconds, steps[rank] = max(seconds, free + latency), AWAY
    return Outcome(seconds, work.done, np.asarray(waited), np.bincount(late))
