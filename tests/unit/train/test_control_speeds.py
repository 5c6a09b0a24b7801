from __future__ import annotations

from types import SimpleNamespace

from phalanx.sync.balance import Balancer
from phalanx.train.control import Control


def test_who_is_gone_gets_no_more_of_the_work() -> None:
    """Its last speed stays on the board for good; those who are left slow down beside it."""
    board, arena = SimpleNamespace(speeds=[900.0, 900.0, 900.0]), SimpleNamespace(lost=set())
    control = SimpleNamespace(_board=board, _arena=arena)
    balancer = Balancer(3)
    read = Control.speeds.fget
    assert read is not None
    for step in range(0, 200, 10):
        balancer.observe(step, read(control))
        if step == 50:
            arena.lost.add(2)
        board.speeds[:2] = [900.0 - 3.0 * step, 850.0 - 3.0 * step]
    assert balancer.shares[2] <= 1 / 3 + 1e-9
