"""How long a small message takes, as all participants agree."""

from __future__ import annotations

import statistics
import time

import torch

from phalanx.sync.collective.algorithms import tree
from phalanx.sync.collective.links import Links

ROUNDS = 7


def measured_latency(links: Links) -> float | None:
    """Of one message, in seconds; of two participants nothing depends on it.

    Everybody sends to the next and receives from the one before; the mean over participants is
    what all use, because a participant with another topology would wait for ever.
    """
    if links.size <= 2:
        return None
    out, into = torch.zeros(1), torch.zeros(1)
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        after, before = (links.rank + 1) % links.size, (links.rank - 1) % links.size
        links.exchange(after, out, before, into)
        took.append(time.perf_counter() - began)
    total = torch.tensor([statistics.median(took)], dtype=torch.float64)
    tree.all_reduce(links, total)
    return float(total) / links.size
