"""Keras on torch, in float64: what differs is not rounding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from keras_here import in_doubles, keras_on_torch


@pytest.fixture
def keras() -> Iterator[Any]:
    found = keras_on_torch()
    with in_doubles(found):
        yield found
