"""One real Slurm for all tests of this folder, which are skipped where there can be none."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_slurm import OwnSlurm, why_not


@pytest.fixture(scope="session")
def slurm() -> Iterator[OwnSlurm]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    # Not in pytest's folder: the path of munged's socket must be short.
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, OwnSlurm(Path(folder)) as running:
        yield running
