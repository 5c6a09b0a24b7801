"""Seconds of an exchange before the step, as ``clip_grad_norm_`` makes one, are no computing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from phalanx.sync.strategy import Timing
from phalanx.train.control.rendezvous import WHOLE
from phalanx.train.engine.exchange import SharedExchange


@pytest.mark.parametrize("kind", ["clip", "read"])
def test_waiting_before_a_step_is_no_computing(kind: str) -> None:
    now = [0.0]
    clock: Any = SimpleNamespace(now=lambda: now[0])

    def takes_two(*_: Any) -> float:
        now[0] += 2.0
        return 1.0

    strategy = MagicMock(clip_gradients=takes_two, share_gradients=takes_two)
    strategy.exchange.side_effect = lambda *_: Timing(wait=0.5)
    active = MagicMock(strategies=[strategy])
    control = MagicMock()
    control.rendezvous.figures = [0.0] * 16
    phases: Any = SimpleNamespace(current=active, replicas=[MagicMock()])
    exchange = SharedExchange(
        MagicMock(pace=clock), clock, None, control, phases, MagicMock(), MagicMock(), MagicMock()
    )
    for _ in range(2):
        if kind == "clip":
            assert exchange.clip_gradients(0, 1.0, 1.0, 5.0) == 1.0
        else:
            exchange.share_gradients(0, 1.0, 1.0)
        exchange.worked(8, 3.0)
        control.measured.assert_called_with(8, 1.0)
        timing = exchange.step(0, 1.0, 1.0, clip=1.0)
        assert (timing.before, timing.wait) == (2.0, 2.5)
    assert control.rendezvous.figures[WHOLE] == 4.0
    exchange.worked(8, 3.0)  # a step without one
    control.measured.assert_called_with(8, 3.0)
