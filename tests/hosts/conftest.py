"""Labs that the tests of a module share. They need root; without it the tests are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_machines import missing, unique_name

from phalanx.lab.lab import Lab

ROOT = Path(__file__).resolve().parents[2]
"""The scripts of these tests have to be seen by the machines, wherever the repository is."""


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Three machines, m1 to m3, on links without a limit."""
    yield from _lab(3, tmp_path_factory)


@pytest.fixture
def fresh_machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Three that a test may cut off and kill."""
    yield from _lab(3, tmp_path_factory)


def _lab(count: int, folders: pytest.TempPathFactory) -> Iterator[Lab]:
    reason = missing()
    if reason:
        pytest.skip(reason)
    with Lab.up(count, name=unique_name(), share=[folders.getbasetemp(), ROOT]) as lab:
        yield lab
