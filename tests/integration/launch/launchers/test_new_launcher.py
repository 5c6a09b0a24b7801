"""A second launcher is one new file and one registry line, from outside the package."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from launch_support import run, start_without_torch

PLUGIN = """
import msgspec
from phalanx.launch.launcher import LAUNCHERS
from phalanx.launch.launchers.local import LocalLauncher

class NiceLauncher(LocalLauncher):
    def prepare(self, job, paths):
        launch = super().prepare(job, paths)
        replace = msgspec.structs.replace
        nice = [replace(w, argv=["nice", "-n", "5", *w.argv]) for w in launch.workers]
        return msgspec.structs.replace(launch, workers=nice)

LAUNCHERS.add("nice", "nice_launcher:NiceLauncher")
"""


def test_it_runs_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nice_launcher.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    start_without_torch(monkeypatch, "nice_launcher")
    body = "join(); print('niceness', os.nice(0)); finish()"
    outcome, seen, _ = run(tmp_path, body, workers=1, launcher="nice")
    assert outcome.exit_code == 0, outcome.error
    assert seen.launches[0].launcher == "nice"
    niceness = int(seen.lines[0][1].split()[1])
    assert niceness >= 5
