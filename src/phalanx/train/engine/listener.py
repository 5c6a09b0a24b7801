"""What an engine tells about the workers that train together."""

from __future__ import annotations

from phalanx.sync.arena.remote.coordinator_messages import Lost
from phalanx.sync.policy.balance import Change
from phalanx.sync.policy.samples_in_hand import Settled


class EngineListener:
    """Does nothing with it."""

    def shares_changed(self, change: Change) -> None:
        """On the first worker: other parts of a batch have been kept or refused."""

    def worker_lost(self, lost: Lost) -> None:
        """A worker is gone, and the others go on."""

    def samples_settled(self, settled: Settled) -> None:
        """On one worker: what became of the samples that a lost one was given."""
