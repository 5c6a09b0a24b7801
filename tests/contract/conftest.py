"""The contract on another device: ``PHALANX_TEST_DEVICE=cuda pytest tests/contract``."""

from __future__ import annotations

import pytest
import torch
from devices import AWAY, DEVICE, compute_exactly


@pytest.fixture(scope="session", autouse=True)
def _on_the_device_asked_for() -> None:
    """Whoever asks for a GPU and has none must not believe that it was tested."""
    if not AWAY:
        return
    assert DEVICE.type != "cuda" or torch.cuda.is_available(), f"torch sees no {DEVICE} here"
    compute_exactly()
