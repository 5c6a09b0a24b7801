"""How what happens is told to the user: line by line."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]
