"""Keras in float64: what differs is not rounding. On torch, or on ``KERAS_BACKEND`` (JAX needs
``JAX_ENABLE_X64=1``)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from keras_here import in_doubles, keras_on


@pytest.fixture
def keras() -> Iterator[Any]:
    found = keras_on(os.environ.get("KERAS_BACKEND", "torch"))
    with in_doubles(found):
        yield found
