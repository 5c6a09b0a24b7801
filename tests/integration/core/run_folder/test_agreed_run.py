"""Processes that were not started together agree on one folder, and the next start on another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ASK = """
import sys
from phalanx.core.run_folder.agreed_run import agreed_run
print(agreed_run(sys.argv[1], "train").id, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PHALANX_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def ask(word: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", ASK, word]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def end(*processes: subprocess.Popen[str]) -> None:
    for process in processes:
        process.communicate(timeout=60)


def test_all_that_live_at_once_get_one_folder_and_the_next_start_another(home: Path) -> None:
    together = [ask("job-1") for _ in range(4)]
    other = ask("job-2")
    try:
        ids = {answer(process) for process in together}
        assert len(ids) == 1
        assert answer(other) not in ids
        assert (home / ids.pop() / "events").is_dir()
    finally:
        end(*together, other)
    later = ask("job-1")
    try:
        made = answer(later)
    finally:
        end(later)
    # The hidden folder, and three runs: two at once, one after them.
    assert len(list(home.iterdir())) == 4
    assert (home / made).is_dir()


def test_a_crash_of_the_first_leaves_the_folder_to_the_others() -> None:
    first = ask("job")
    made = answer(first)
    second = ask("job")
    try:
        assert answer(second) == made
        first.kill()
        end(first)
        third = ask("job")
        try:
            assert answer(third) == made
        finally:
            end(third)
    finally:
        end(second)
