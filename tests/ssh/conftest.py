"""What most tests over SSH share; a module that needs other machines has its own ``machines``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_machines import MakeLab, lab
from ssh_runs import Bench

from phalanx.lab.lab import Lab

__all__ = ["lab"]


@pytest.fixture(scope="module")
def machines(lab: MakeLab) -> Iterator[Lab]:
    yield lab(2)


@pytest.fixture
def bench(machines: Lab, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(machines, tmp_path)
    yield bench
    bench.close()
