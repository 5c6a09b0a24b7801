"""The profiles of a run: the table of each worker, as its file has it, and their means."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Annotated

import msgspec

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.operators.operator_names import BACKWARD, COMMUNICATION, INPUT
from phalanx.observe.summary.run_records import read_record


class OperatorRow(msgspec.Struct, kw_only=True):
    """An operator in a phase and a layer, and its seconds in a step."""

    operator: str
    group: str
    kind: str
    """The name by which operators of different systems are matched."""
    phase: str
    layer: str
    self_seconds: float
    """Without what is a row of its own inside."""
    device_seconds: float
    """Seconds of its kernels on a GPU."""

    @property
    def label(self) -> str:
        return f"{self.kind} backward" if self.phase == BACKWARD else self.kind


class OperatorTable(msgspec.Struct, kw_only=True):
    """``profiles/rank-N.json``: what the steps of one worker consist of."""

    device: str
    steps: int
    """How many steps count."""
    step_seconds: Annotated[float, msgspec.Meta(gt=0)]
    python_seconds: float
    """Seconds of a step in which no operator runs, and nothing is read or sent: the script."""
    memory_bytes: int
    """The peak from its start: of what torch has on a GPU, else of the process."""
    operators: list[OperatorRow]

    def seconds_by(self, field: str) -> dict[str, float]:
        """Return the seconds of a step by a field of the rows: on a GPU those of the kernels,
        except where the host waits for data or for other workers."""
        sums: dict[str, float] = defaultdict(float)
        for row in self.operators:
            waits = row.phase in (INPUT, COMMUNICATION) and not row.device_seconds
            on_host = self.device == "cpu" or waits
            sums[getattr(row, field)] += row.self_seconds if on_host else row.device_seconds
        return {name: seconds for name, seconds in sums.items() if name and seconds}


def read_profiles(paths: RunPaths) -> list[OperatorTable]:
    """Return the tables of a run's workers, by rank."""
    files = sorted(paths.profiles.glob("rank-*.json"))
    found = (read_record(file, OperatorTable) for file in files)
    return [table for table in found if table is not None]


def mean_by(tables: Sequence[OperatorTable], field: str) -> dict[str, float]:
    """Return the seconds of a step by a field of the rows, as a mean of the workers."""
    found = [table.seconds_by(field) for table in tables]
    names = dict.fromkeys(name for one in found for name in one)
    return {name: fmean(one.get(name, 0.0) for one in found) for name in names}
