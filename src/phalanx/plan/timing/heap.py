"""Events one by one, for small clusters whose links are no limit: every rule, exactly."""

from __future__ import annotations

import heapq

import numpy as np

from phalanx.plan.timing.gate import Gate
from phalanx.plan.timing.work import Outcome, Trace, Work
from phalanx.rules.admission import Rule


def run_heap(
    work: Work, rule: Rule, latency: float, update: float, trace: Trace | None = None
) -> Outcome:
    """Servers have equal parts and get them at the same time: they are one queue."""
    gate, workers = Gate(rule, work.workers), work.workers
    pushes: list[tuple[float, int]] = []  # when they arrive, and whose they are
    for rank in range(workers):
        if work.more(rank, 0):
            pushes.append((work.draws.one(rank, 0) + latency, rank))
        else:
            gate.leave(rank)
    heapq.heapify(pushes)
    started, waited, seen = [0.0] * workers, [0.0] * workers, [0] * workers
    late: list[int] = []
    free = seconds = 0.0
    version = 0
    steps, at, lowest, quick = gate.steps, gate.at, gate.lowest, gate.bound if not trace else -1
    more, draw, replace, push = work.more, work.draws.one, heapq.heapreplace, heapq.heappush
    while pushes:
        arrived, rank = pushes[0]
        if arrived < free:
            waited[rank] += free - arrived
            free += update
        else:
            free = arrived + update
        late.append(version - seen[rank])
        version += 1
        step = steps[rank]
        ahead = step - lowest[0]
        if ahead < quick and ((level := at[step]) > 1 or ahead) and more(rank, step + 1):
            # The usual case without the gate: it goes on, and no other because of it.
            if level > 1:
                at[step] = level - 1
            else:
                del at[step]
            at[step + 1] += 1
            steps[rank], seen[rank] = step + 1, version
            replace(pushes, (free + latency + draw(rank, step + 1) + latency, rank))
            continue
        heapq.heappop(pushes)
        for other, since in gate.pushed(rank, free):
            waited[other] += free - since
            step = steps[other]
            if trace is not None:
                trace(other, step - 1, started[other], free, seen[other])
            seen[other], started[other] = version, free + latency
            if more(other, step):
                push(pushes, (started[other] + draw(other, step) + latency, other))
            else:
                seconds = max(seconds, started[other])
                gate.leave(other)
    return Outcome(seconds, work.done, np.asarray(waited), np.bincount(late))
