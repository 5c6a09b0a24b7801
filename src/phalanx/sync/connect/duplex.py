"""Exchanges raw bytes in both directions at once, over several connections."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence

from phalanx.sync.connect import liveness
from phalanx.sync.connect.channel import Buffer, Channel, as_bytes, drop_first


class _Flow:
    """The buffers that are still to be moved in one direction of one channel."""

    def __init__(self, channel: Channel, buffers: Sequence[Buffer], *, sends: bool) -> None:
        self.channel, self.sends = channel, sends
        self.left = [view for view in map(as_bytes, buffers) if len(view)]
        if sends:
            channel.expect_bulk(sum(map(len, self.left)))

    def move(self, *, wait: bool) -> bool:
        """Move what can be moved now; return whether anything was."""
        if self.sends:
            count = self.channel.send_some(self.left, wait=wait)
        else:
            count = self.channel.receive_some(self.left[0], wait=wait)
        drop_first(self.left, count)
        return count > 0


def exchange(
    outgoing: Sequence[tuple[Channel, Sequence[Buffer]]],
    incoming: Sequence[tuple[Channel, Sequence[memoryview]]],
    timeout: float | None = None,
) -> None:
    """Send and receive these bytes, all at once. No frames: both sides know the sizes.

    A ring sends to one channel and receives from another; a pair uses one for both.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    flows = [_Flow(channel, buffers, sends=True) for channel, buffers in outgoing]
    flows += [_Flow(channel, buffers, sends=False) for channel, buffers in incoming]
    flows = [flow for flow in flows if flow.left]
    while flows:
        # With one direction left nothing else can starve: the kernel may wait for us.
        alone = len(flows) == 1 and deadline is None
        moved = False
        for flow in flows:
            moved |= flow.move(wait=alone)
        flows = [flow for flow in flows if flow.left]
        if flows and not moved:
            _wait(flows, deadline)


def _wait(flows: Sequence[_Flow], deadline: float | None) -> None:
    """Wait until one of the flows may go on; raise for a cut link, or past the deadline."""
    poller = select.poll()
    wanted: dict[int, int] = {}
    for flow in flows:
        number = flow.channel.fileno()
        events = flow.channel.poll_events(sending=flow.sends, receiving=not flow.sends)
        wanted[number] = wanted.get(number, 0) | events
    for number, events in wanted.items():
        poller.register(number, events)
    while not poller.poll(liveness.LOOK_SECONDS * 1000 if deadline is None else _pause(deadline)):
        for flow in flows:
            flow.channel.look()
        if deadline is not None and time.monotonic() >= deadline:
            raise flows[0].channel.lost("it did not answer in time")


def _pause(deadline: float) -> float:
    """Return the milliseconds until the next look."""
    return max(0.0, min(deadline - time.monotonic(), liveness.LOOK_SECONDS)) * 1000
