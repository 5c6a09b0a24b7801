"""Requests of ``phalanx switch``: each is taken once, also one that came before the training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events.emit import EventWriter
from phalanx.train.control.directives import (
    LOOK_SECONDS,
    CheckpointTimer,
    CommandPoller,
    Directive,
    Kind,
)
from phalanx.train.start.environment import Environment
from phalanx.train.start.lifecycle import Lifecycle


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
