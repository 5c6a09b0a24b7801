"""Meetings at which workers mean different things, and policies whose word was lost."""

from __future__ import annotations

from phalanx.core.spec import parse_spec
from phalanx.train.control.balancing import LOOK_EVERY, SpeedWatch
from phalanx.train.control.directives import Directive, Kind


def test_a_verdict_that_was_lost_to_another_command_is_given_again() -> None:
    spec = parse_spec("switch:on=straggler")
    phase, now = spec.phases[0], 0.0
    watch = SpeedWatch(2, balance=False)
    watch.enter(phase, spec, False)

    def verdict(speed: float) -> Directive | None:
        nonlocal now
        for _ in range(40 * LOOK_EVERY):
            now += 1.0
            command = watch.verdict([100.0, speed], now)
            if command is not None:
                return command
        return None

    assert verdict(100.0) is None
    assert verdict(20.0) == Directive(Kind.LEAVE)
    watch.follow(phase, spec)  # a checkpoint came first: training is where it was
    assert verdict(20.0) == Directive(Kind.LEAVE)
    watch.enter(spec.phases[1], spec, False)
    assert verdict(20.0) is None
    assert verdict(100.0) == Directive(Kind.RETURN)
