"""Unmodified scripts of Accelerate and Lightning, with one process on one machine, two on another.

They have an environment of their own, made in the cache on first use; Phalanx is not in it.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from ssh_runs import Bench, Ended, Running, nothing_left

from phalanx.core.files import cache_home

EXAMPLES = Path(__file__).parents[2] / "examples"
ACCELERATE, LIGHTNING = "plain_accelerate.py", "plain_lightning.py"
LONG = 600.0
"""Seconds: three processes that import all of it on few cores."""
MAKING = 900.0
MODULES = ("torch", "accelerate", "lightning")
HAS_THEM = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"


@pytest.fixture(scope="module")
def python() -> str:
    """Found, or made: torch first and exactly, since any other way of asking gets another build."""
    folder = cache_home() / "peers" / "accelerate-lightning"
    found = folder / "bin" / "python"
    if not (found.exists() and subprocess.run([found, "-c", HAS_THEM, *MODULES]).returncode == 0):
        install = [str(found), "-m", "pip", "install", "--quiet"]
        torch = f"torch=={version('torch').partition('+')[0]}"
        try:
            call(sys.executable, "-m", "venv", "--clear", str(folder))
            call(*install, torch)
            call(*install, torch, "accelerate", "lightning")
        except (OSError, subprocess.SubprocessError) as error:
            pytest.skip(f"Accelerate and Lightning cannot be installed: {error}")
    return str(found)


def call(*words: str) -> None:
    subprocess.run(words, check=True, timeout=MAKING, capture_output=True)


def start(bench: Bench, python: str, script: str, *words: str) -> Running:
    """Three processes, one on m1 and two on m2, by the Python that the blueprint names."""
    if (EXAMPLES / script).is_file():
        shutil.copy(EXAMPLES / script, bench.project)
    pool = bench.blueprint(m1={"python": python}, m2={"python": python})
    where = ["--pool", str(pool), "--machines", "m1,m2", "--workers", "3"]
    return bench.start("run", script, "--framework", "torch", *where, *words)


def end(bench: Bench, running: Running) -> Ended:
    ended = running.end(LONG)
    nothing_left(bench.lab, "m1", "m2")
    return ended


def accuracies(said: str) -> list[float]:
    """Of each epoch that three processes trained together; the first of them tells it."""
    return [float(found) for found in re.findall(r"accuracy (\d\.\d+), 3 processes", said)]


@pytest.mark.parametrize(
    ("script", "words"),
    [(ACCELERATE, ()), (LIGHTNING, ()), (LIGHTNING, ("--", "--devices", "3", "--nodes", "1"))],
    ids=["accelerate", "lightning", "lightning-that-says-how-many"],
)
def test_one_and_two_processes_train_together(
    bench: Bench, python: str, script: str, words: tuple[str, ...]
) -> None:
    ended = end(bench, start(bench, python, script, *words))
    assert ended.code == 0
    assert bench.summary()["exit_codes"] == [0, 0, 0]
    found = accuracies(ended.words)
    assert len(found) == 2 and found[-1] > 0.9
    if script == LIGHTNING:
        logs = [(bench.latest() / f"logs/rank-{rank}.log").read_text() for rank in range(3)]
        members = [re.findall(r"GLOBAL_RANK: (\d), MEMBER: \d/(\d)", log) for log in logs]
        assert members == [[("0", "3")], [("1", "3")], [("2", "3")]]


def test_sizes_that_do_not_fit_are_refused_by_lightning(bench: Bench, python: str) -> None:
    ended = end(bench, start(bench, python, LIGHTNING, "--", "--devices", "2", "--nodes", "2"))
    assert ended.code == 1
    assert "does not match the world size (3)" in ended.words
