"""Workers, servers, and the links between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class FreeCluster:
    """What strategies run on whose workers push to servers, each at its own time.

    A worker computes, sends its push, a part to each server; a server is busy with one part after
    another. When all parts are applied the worker's clock counts, and it waits until the rule
    admits it; then the reply comes. Workers of one machine use its link together, and where links
    are limited its connections in turns; nothing that stays on a machine uses a link.
    """

    compute: Sequence[float]
    """Mean seconds of a step of each worker."""
    variation: float
    """Standard deviation of a step's seconds, as a share of their mean."""
    homes: Sequence[int]
    """The machine of each worker."""
    servers: Sequence[int]
    """The machine of each server; each keeps an equal part of the parameters."""
    push_bytes: float
    reply_bytes: float
    """Of a whole push, and of the reply to it."""
    sending: Sequence[float]
    receiving: Sequence[float]
    """Bytes per second of each machine's link; ``inf`` is no limit."""
    latency: float
    """Seconds of any message, however small."""
    update: float
    """Seconds for which a server is busy with its part of a push."""

    @property
    def limited(self) -> bool:
        """Whether anything that is sent takes longer because of its size."""
        used = {*self.homes, *self.servers}
        limited = any(np.isfinite([self.sending[m], self.receiving[m]]).any() for m in used)
        return limited and len(used) > 1 and self.push_bytes + self.reply_bytes > 0

    def queued(self) -> tuple[float, NDArray[np.float64]]:
        """Links as queues, for clusters that are too large for flows.

        Returns the seconds for which the slowest server is busy with a push, its link included,
        and the seconds that each worker's own link adds to a step. Within a few percent of fair
        shares, but up to a quarter too fast where the links of servers are saturated: fair shares
        let pushes bunch, and then replies.
        """
        parts = len(self.servers)
        push, reply = self.push_bytes / parts, self.reply_bytes / parts
        away = [sum(home != server for home in self.homes) for server in self.servers]
        share = [count / max(1, len(self.homes)) for count in away]
        busy = max(
            max(part * push / self.receiving[m], part * reply / self.sending[m])
            for part, m in zip(share, self.servers, strict=True)
        )
        own = [
            sum(push / self.sending[h] + reply / self.receiving[h] for s in self.servers if s != h)
            for h in self.homes
        ]
        return max(self.update, busy), np.asarray(own, np.float64)
