"""Keras in float64: what differs is not rounding. On torch, or on ``KERAS_BACKEND`` (JAX needs
``JAX_ENABLE_X64=1``)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from keras_here import in_doubles, keras_on

OF_TORCH = ("_loader", "_frozen_then", "scripts_own", "two_optimizers")
"""Parts of the names of tests of what only Keras on torch does."""


@pytest.fixture
def keras(request: pytest.FixtureRequest) -> Iterator[Any]:
    backend = os.environ.get("KERAS_BACKEND", "torch")
    if backend != "torch" and any(part in request.node.name for part in OF_TORCH):
        pytest.skip("it is about Keras on torch")
    found = keras_on(backend)
    with in_doubles(found):
        yield found
