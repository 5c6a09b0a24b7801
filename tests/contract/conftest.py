"""The contract elsewhere: ``PHALANX_TEST_DEVICE=cuda`` or ``PHALANX_TEST_HOSTS=2``.

Hosts are threads here, each group with memory of its own, which meet over real connections.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from devices import AWAY, DEVICE, compute_exactly
from on_hosts import HOSTS

from phalanx.sync.collective.algorithms import ahead, striped
from phalanx.sync.reduce import early_gradients

_HERE = Path(__file__).parent
ONE_HOST = {
    "test_properties.py": "replays interleavings from a seed, which one host's memory allows",
    "test_one_truth.py": "time is scripted on one host only",
    "test_what_was_sent_and_what_is_kept_add_up_to_all_gradients": "looks into one host's memory; "
    "test_between_hosts.py looks into that of two",
}
"""Files and tests that do not run on several hosts, and why."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items if HOSTS > 1 else ():
        if item.path.parent != _HERE:
            continue
        name = getattr(item, "originalname", item.name)
        reason = ONE_HOST.get(item.path.name) or ONE_HOST.get(name)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(autouse=HOSTS > 1)
def _go_ahead_with_the_smallest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models are small here: without this nothing would leave before its step."""
    monkeypatch.setattr(ahead, "WORTHWHILE", 0)
    monkeypatch.setattr(striped, "WORTHWHILE", 0)
    monkeypatch.setattr(early_gradients, "LEAST", 1)


@pytest.fixture(scope="session", autouse=True)
def _on_the_device_asked_for() -> None:
    """Whoever asks for a GPU and has none must not believe that it was tested."""
    if not AWAY:
        return
    assert DEVICE.type != "cuda" or torch.cuda.is_available(), f"torch sees no {DEVICE} here"
    compute_exactly()
