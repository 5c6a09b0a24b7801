"""What all tests share."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "support"))
from adopted_runs import forget_hooks

settings.register_profile("phalanx", deadline=None)  # several processes share the cores
settings.load_profile("phalanx")


def pytest_collection_finish() -> None:
    """What is imported by now stays: looking for models and for garbage need not pass it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Ranks are threads in most tests: each computes on one core, and sums in one order."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _no_hooks_left() -> Iterator[None]:
    """Workers that failed in an earlier test of this process have left none."""
    yield
    forget_hooks()


@pytest.fixture(autouse=True)
def _own_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test writes into the working folder."""
    monkeypatch.setenv("PHALANX_RUNS", str(tmp_path / "runs"))


@pytest.fixture(autouse=True, scope="session")
def _own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nor makes a key in the home of who runs the tests. Fixtures of modules start runs too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))
        yield
