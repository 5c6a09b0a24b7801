from __future__ import annotations

import pytest
from launch_support import start_without_torch


@pytest.fixture(autouse=True)
def _without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    start_without_torch(monkeypatch)
