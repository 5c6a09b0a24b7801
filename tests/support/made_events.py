"""Events of workers that never were, with what a test does not name filled in."""

from __future__ import annotations

from typing import Any

from phalanx.observe.events.event_types import Finished, Joined, Steps


def joined(rank: int = 0, **changes: Any) -> Joined:
    fields: dict[str, Any] = {
        "time": 0.0, "wall": 0.0, "workers": 2, "machine": "here", "pid": 1, "device": "cpu",
        "threads": 1, "precision": "float32", "strategy": "async", "parameters": 1, "seed": 0,
        "versions": {}, "notes": [],
    }  # fmt: skip
    return Joined(rank=rank, **(fields | changes))


def finished(rank: int = 0, status: str = "done") -> Finished:
    return Finished(time=30.0, rank=rank, status=status, bytes_sent=0, peak_memory=0)


def steps(rank: int = 0, count: int = 0, *, epoch: int = 0, first: int = 0, **given: Any) -> Steps:
    """``count`` steps; of what is given, a single value stands for each of them."""
    columns: dict[str, Any] = dict.fromkeys(Steps.__struct_fields__, 0.0)
    columns |= {"samples": 0, "staleness": 0, "loss": None} | given
    columns = {n: c if isinstance(c, list) else [c] * count for n, c in columns.items()}
    return Steps(**(columns | {"rank": rank, "epoch": epoch, "first": first}))
