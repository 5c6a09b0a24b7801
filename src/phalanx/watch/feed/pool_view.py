"""The machines of a pool while nobody trains on them, from the readings that are handed in."""

from __future__ import annotations

from phalanx.observe.events.event_types import MachineSample
from phalanx.watch.feed.cluster_view import UNREACHABLE, UP, ClusterView, Readings, make_cluster
from phalanx.watch.feed.run_view import MachineRow


class PoolFeed:
    """Takes readings, all on one clock, and shows them like those of a run."""

    def __init__(self) -> None:
        self._readings: dict[str, Readings] = {}
        self._rows: dict[str, MachineRow] = {}
        self._began = float("inf")

    def take(self, machine: str, sample: MachineSample | None) -> None:
        """Take a reading; ``None``: the machine did not answer."""
        state = UNREACHABLE if sample is None else UP
        self._rows[machine] = MachineRow(name=machine, state=state)
        found = self._readings.setdefault(machine, Readings())
        if sample is not None:
            self._began = min(self._began, sample.time)
            found.add(sample)

    def view(self, points: int = 300) -> ClusterView:
        return make_cluster(list(self._rows.values()), self._readings, self._began, points)
