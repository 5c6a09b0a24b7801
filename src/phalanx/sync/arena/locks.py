"""Who owns which lock of an arena: its locks have numbers, and each number one owner."""

from __future__ import annotations

from enum import IntEnum


class Locks(IntEnum):
    """Numbers of an arena's locks. Shards take turns in ``SHARDS`` locks from ``FIRST_SHARD``."""

    CLAIMS = 0
    EVALUATION = 1
    BEST = 2
    STOP = 3
    GATE = 4
    DATA = 5
    FIRST_SHARD = 8
    SHARDS = 48


def shard_lock(shard: int) -> int:
    """The lock of ``shard``; with very many shards, some share one."""
    return Locks.FIRST_SHARD + shard % Locks.SHARDS
