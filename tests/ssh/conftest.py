"""What tests over SSH share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_machines import MakeLab, lab
from ssh_runs import Bench

from phalanx.lab.lab import Lab

__all__ = ["lab"]
HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module")
def machines(request: pytest.FixtureRequest, lab: MakeLab) -> Lab:
    """Two, or what a module says with ``LAB``: how many, and with which limits."""
    return lab(**{"count": 2, **getattr(request.module, "LAB", {})})


@pytest.fixture
def bench(machines: Lab, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(machines, tmp_path)
    yield bench
    bench.close()
