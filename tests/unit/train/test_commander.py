"""Requests of ``phalanx switch``: each is taken once, also one that came before the training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.train.checkpoint.checkpointing import Checkpointer
from phalanx.train.control.command_cells import Kind
from phalanx.train.control.command_poller import LOOK_SECONDS, CommandPoller
from phalanx.train.start.environment import Environment


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        self.time += 2 * LOOK_SECONDS
        return self.time


class Never(Checkpointer):
    """No checkpoint is ever due."""

    def __init__(self) -> None:
        pass

    def is_due(self) -> bool:
        return False


def _commander(folder: Path, workers: int = 2) -> CommandPoller:
    environment = Environment(workers=workers, paths=RunPaths(folder))
    return CommandPoller(environment, Clock(), Never())


def _ask(folder: Path, number: int, spec: str) -> None:
    RunPaths(folder).switch.write_text(json.dumps({"number": number, "spec": spec}))


def test_each_request_is_taken_once_even_by_the_next_training(tmp_path: Path) -> None:
    _ask(tmp_path, 1, "async")
    first = _commander(tmp_path)
    command = first.look()
    assert command is not None and (command.kind, command.spec) == (Kind.SWITCH, "async")
    assert first.look() is None
    second = _commander(tmp_path)
    assert second.look() is None
    _ask(tmp_path, 2, "ssp:bound=2")
    command = second.look()
    assert command is not None and command.spec == "ssp:bound=2"


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
