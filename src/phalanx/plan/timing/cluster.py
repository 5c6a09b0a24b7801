"""Workers, servers, and the links between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite

import numpy as np

from phalanx.plan.timing.work import Floats


@dataclass(frozen=True)
class FreeCluster:
    """What strategies run on whose workers push to servers, each at its own time.

    A worker computes, sends its push, a part to each server; a server is busy with one part after
    another. When all parts are applied the worker's clock counts, and it waits until the rule
    admits it; then the reply comes. Workers of one machine use its link together, and where links
    are limited its connections in turns; nothing that stays on a machine uses a link.
    """

    compute: Sequence[float] | Floats
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
        limited = any(isfinite(self.sending[m]) or isfinite(self.receiving[m]) for m in used)
        return limited and len(used) > 1 and self.push_bytes + self.reply_bytes > 0

    def queued(self) -> FreeCluster:
        """The same without a limit, where links are queues: each worker's own link makes its steps
        longer, and the slowest link of a server is busy with each push, as the server is.

        Within a few percent of fair shares, but up to a quarter too fast where the links of servers
        are saturated: fair shares let pushes bunch, and then replies.
        """
        push, reply = self.push_bytes / len(self.servers), self.reply_bytes / len(self.servers)
        sending, receiving = np.array(self.sending), np.array(self.receiving)
        homes, servers = np.array(self.homes), np.array(self.servers)
        away = homes[:, None] != servers
        busy = away.mean(axis=0) * np.maximum(push / receiving[servers], reply / sending[servers])
        own: Floats = away.sum(axis=1) * (push / sending[homes] + reply / receiving[homes])
        no_limit = [inf] * len(sending)
        return replace(
            self,
            compute=np.asarray(self.compute) + own,
            update=max(self.update, float(busy.max())),
            sending=no_limit,
            receiving=no_limit,
        )
