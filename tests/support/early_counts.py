"""How often gradients left before their step."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest


def count_early(kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Of sums of this ``kind``: something went before it was offered, and went in vain."""
    found: Counter[str] = Counter()
    ready, discard = kind.ready, kind.discard

    def counted(self: Any, low: int) -> None:
        found["early"] += low > 0
        ready(self, low)

    def counted_discard(self: Any) -> None:
        found["in vain"] += 1
        discard(self)

    monkeypatch.setattr(kind, "ready", counted)
    monkeypatch.setattr(kind, "discard", counted_discard)
    return found
