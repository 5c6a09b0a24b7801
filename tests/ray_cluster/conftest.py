"""One real Ray of two nodes for all tests of this folder; skipped where Ray is not installed."""

from __future__ import annotations

import importlib.util
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from own_ray import RAY, OwnRay


@pytest.fixture(scope="session")
def ray() -> Iterator[OwnRay]:
    if importlib.util.find_spec("ray") is None or not RAY.exists():
        pytest.skip("Ray is not installed here (pip install ray)")
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        port = door.getsockname()[1]
    # Not in pytest's folder: the paths of Ray's sockets must be short.
    with (
        tempfile.TemporaryDirectory(prefix="ray-") as folder,
        OwnRay(Path(folder), port) as running,
    ):
        yield running
