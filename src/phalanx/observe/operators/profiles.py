"""The profiles of a run: the table of each worker, as its file has it, and their mean."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean

import msgspec

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.operators.operator_names import BACKWARD, COMMUNICATION, INPUT
from phalanx.observe.summary.run_records import read_record


class OperatorRow(msgspec.Struct, kw_only=True):
    """An operator in a phase and a layer; calls and seconds are those of a step."""

    operator: str
    group: str
    kind: str
    """The name by which operators of different systems are matched."""
    phase: str
    layer: str
    calls: float
    self_seconds: float
    """Without what is a row of its own inside."""
    total_seconds: float
    device_seconds: float
    """Seconds of its kernels on a GPU."""

    @property
    def label(self) -> str:
        return f"{self.kind}, backward" if self.phase == BACKWARD else self.kind


class OperatorTable(msgspec.Struct, kw_only=True):
    """``profiles/rank-N.json``: what the steps of one worker consist of."""

    framework: str
    steps: int
    """How many steps count."""
    step_seconds: float
    python_seconds: float
    """Seconds of a step in which no operator runs, and nothing is read or sent: the script."""
    exposed_seconds: float
    """Seconds of a step in which something is sent or waited for, and nothing computed."""
    device: str
    memory_bytes: int
    """The process's peak, from its start."""
    device_memory_bytes: int = 0
    cost: float | None = None
    """The median step profiled ÷ not profiled; ``None``: no other steps were taken."""
    operators: list[OperatorRow]

    def seconds_of(self, row: OperatorRow) -> float:
        """Return the seconds to compare: on a GPU those of the kernels, if the row can have any."""
        waits = row.phase in (INPUT, COMMUNICATION) and not row.device_seconds
        return row.self_seconds if self.device == "cpu" or waits else row.device_seconds


class RunProfile(msgspec.Struct, kw_only=True):
    """The profiles of all workers of a run: means of their steps, peaks of their memory."""

    framework: str
    device: str
    workers: int
    steps: int
    step_seconds: float
    python_seconds: float
    exposed_seconds: float
    memory_bytes: int
    device_memory_bytes: int
    cost: float | None
    groups: dict[str, float]
    """Seconds of a step by group."""
    phases: dict[str, float]
    operators: dict[str, float]
    """Seconds of a step by the operators' labels."""
    layers: dict[str, float]


def read_profiles(paths: RunPaths) -> list[OperatorTable]:
    """Return the tables of the workers, by rank; files that are broken are left out."""
    files = sorted(paths.profiles.glob("rank-*.json"))
    found = (read_record(file, OperatorTable) for file in files)
    return [table for table in found if table is not None and table.steps > 0]


def profile_of(tables: Sequence[OperatorTable]) -> RunProfile:
    first = tables[0]

    def seconds_by(key: Callable[[OperatorRow], str]) -> dict[str, float]:
        sums: dict[str, float] = defaultdict(float)
        for table in tables:
            for row in table.operators:
                sums[key(row)] += table.seconds_of(row) / len(tables)
        return {name: s for name, s in sorted(sums.items(), key=lambda pair: -pair[1]) if name}

    costs = [table.cost for table in tables if table.cost is not None]
    return RunProfile(
        framework=first.framework,
        device=first.device,
        workers=len(tables),
        steps=first.steps,
        step_seconds=fmean(table.step_seconds for table in tables),
        python_seconds=fmean(table.python_seconds for table in tables),
        exposed_seconds=fmean(table.exposed_seconds for table in tables),
        memory_bytes=max(table.memory_bytes for table in tables),
        device_memory_bytes=max(table.device_memory_bytes for table in tables),
        cost=fmean(costs) if costs else None,
        groups=seconds_by(lambda row: row.group),
        phases=seconds_by(lambda row: row.phase),
        operators=seconds_by(lambda row: row.label),
        layers=seconds_by(lambda row: row.layer),
    )
