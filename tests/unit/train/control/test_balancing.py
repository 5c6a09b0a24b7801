"""Shares, requests of ``phalanx switch``, and verdicts on stragglers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.spec import parse_spec
from phalanx.observe.events.emit import EventWriter
from phalanx.train.control.balancing import LOOK_EVERY, TICK_SECONDS, SpeedWatch
from phalanx.train.control.directives import (
    LOOK_SECONDS,
    CheckpointTimer,
    CommandPoller,
    Directive,
    Kind,
)
from phalanx.train.control.rendezvous import BUSY, FIGURES, SAMPLES, STEPS, WHOLE
from phalanx.train.start.environment import Environment
from phalanx.train.start.lifecycle import Lifecycle

BATCH = 300.0


def watching(workers: int, strategy: str) -> SpeedWatch:
    spec = parse_spec(strategy)
    watch = SpeedWatch(workers, balance=True)
    watch.enter(spec.phases[0], spec, False)
    return watch


def step(figures: np.ndarray, watch: SpeedWatch, costs: Mapping[int, float]) -> None:
    """A step of the workers in ``costs`` (seconds per sample); the slowest decides its length."""
    samples = {rank: watch.shares[rank] * BATCH for rank in costs}
    lap = max(costs[rank] * samples[rank] for rank in costs)
    for rank, cost in costs.items():
        figures[rank, STEPS] += 1
        figures[rank, SAMPLES] += samples[rank]
        figures[rank, BUSY] += cost * samples[rank]
        figures[rank, WHOLE] += lap


def test_the_others_are_balanced_after_a_worker_is_lost() -> None:
    """Its figures stay where they are: shares must neither wait for them nor take them as news."""
    figures, watch = np.zeros((3, len(FIGURES))), watching(3, "ssp")
    for _ in range(5):
        step(figures, watch, {0: 0.001, 1: 0.001, 2: 0.001})
        watch.new_shares(figures)
    for _ in range(100):
        step(figures, watch, {0: 0.003, 1: 0.002})
        watch.new_shares(figures, lost={2})
    assert watch.shares[1] / watch.shares[0] == pytest.approx(1.5, rel=0.01)
    assert watch.shares[2] == pytest.approx(1 / 3)


def test_nothing_is_concluded_before_every_worker_has_made_a_step() -> None:
    figures, watch = np.zeros((2, len(FIGURES))), watching(2, "ssp")
    watch.new_shares(figures)
    for _ in range(100):
        step(figures, watch, {0: 0.003})
        assert not watch.new_shares(figures)


@pytest.mark.parametrize("seconds", [0.1, 0.001])
def test_short_steps_are_looked_at_together(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures, watch = np.zeros((2, len(FIGURES))), watching(2, "allreduce")
    looked: list[object] = []
    monkeypatch.setattr(watch._balancer, "observe", looked.append)
    for _ in range(101):
        step(figures, watch, dict.fromkeys(range(2), seconds / (BATCH / 2)))
        if figures[0, WHOLE] >= watch.next_tick:
            watch.new_shares(figures)
    assert len(looked) == (100 if seconds > TICK_SECONDS else 5)


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        self.time += 2 * LOOK_SECONDS
        return self.time


def _commander(folder: Path, workers: int = 2) -> CommandPoller:
    environment = Environment(workers=workers, paths=RunPaths(folder), clock=Clock())
    lifecycle = Lifecycle(environment, EventWriter(None, 0))
    return CommandPoller(environment, CheckpointTimer(None), lifecycle)


def _ask(folder: Path, number: int, spec: str) -> None:
    RunPaths(folder).switch.write_text(json.dumps({"number": number, "spec": spec}))


def test_each_request_is_taken_once_even_by_the_next_training(tmp_path: Path) -> None:
    _ask(tmp_path, 1, "async")
    first = _commander(tmp_path)
    assert first.look() == Directive(Kind.SWITCH, "async")
    assert first.look() is None
    second = _commander(tmp_path)
    assert second.look() is None
    _ask(tmp_path, 2, "ssp:bound=2")
    assert second.look() == Directive(Kind.SWITCH, "ssp:bound=2")


def test_nonsense_and_a_worker_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _ask(tmp_path, 1, "no such thing")
    assert _commander(tmp_path).look() is None
    assert capsys.readouterr().err == (
        "phalanx: switch refused: unknown strategy 'no such thing'; training goes on as before\n"
    )
    RunPaths(tmp_path).switch.write_text("{")
    assert _commander(tmp_path).look() is None
    _ask(tmp_path, 2, "async")
    assert _commander(tmp_path, workers=1).look() is None


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
