"""``phalanx switch``: what is asked of a run, and what its workers answer."""

from __future__ import annotations

import json
import threading
import time

import pytest
from cli_support import Shell
from made_runs import write_run

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.summary.run_lock import hold

RUN = "20250102-000000-train-allreduce"


@pytest.fixture
def paths(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> RunPaths:
    monkeypatch.setattr("phalanx.cli.verbs.switch.POLL_SECONDS", 0.01)
    return write_run(shell.runs, RUN, strategy="allreduce@0.5/async", status=None)


def test_a_switch_that_happened_before_is_not_the_answer(
    shell: Shell, paths: RunPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The made run has switched to async in the past, and is asked for it again."""
    monkeypatch.setattr("phalanx.cli.verbs.switch.PATIENCE_SECONDS", 0.2)
    with hold(paths):
        for number in (1, 2):
            answer = shell("switch", RUN, "async", "--json")
            assert answer.code == 0
            assert answer.json["switched"] is False
            assert answer.json["number"] == number
            assert "have not switched yet" in answer.err
    assert json.loads(paths.switch.read_text())["number"] == 2


def test_a_run_that_ends_meanwhile(shell: Shell, paths: RunPaths) -> None:
    with hold(paths):
        ended = threading.Event()

        def end() -> None:
            while not paths.switch.exists() and not ended.is_set():
                time.sleep(0.01)
            paths.controller.unlink()

        thread = threading.Thread(target=end)
        thread.start()
        answer = shell("switch", "async")
        ended.set()
        thread.join()
    assert "ended before it switched" in answer.out


def test_what_cannot_be_switched(shell: Shell, paths: RunPaths) -> None:
    answer = shell("switch", RUN, "async")
    assert answer.code == 2
    assert answer.errors[0] == f"error: '{RUN}' is not running"
    assert "phalanx resume" in answer.errors[1]

    alone = write_run(shell.runs, "20250103-000000-alone", workers=1, status=None)
    with hold(alone):
        answer = shell("switch", "async")
    assert answer.code == 2
    assert "has one worker" in answer.errors[0]
    assert not alone.switch.exists()
    assert not paths.switch.exists()
