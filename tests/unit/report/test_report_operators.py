"""Profiled runs side by side: on the terminal, for programs, in the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cli_support import invoke
from made_runs import write_run, write_study

from phalanx.core.run_folder.run_paths import RunPaths


def row(operator: str, group: str, kind: str, phase: str, milliseconds: float) -> dict[str, Any]:
    seconds = {"self_seconds": milliseconds / 1000, "device_seconds": 0.0}
    named = {"operator": operator, "group": group, "kind": kind, "phase": phase}
    return {**named, "layer": "\x1b[31m0 <Conv2d>", **seconds}


def write_profile(paths: RunPaths, rank: int, times: float, **changes: Any) -> None:
    rows = [
        row("ConvolutionBackward0", "convolution", "convolution", "backward", 4 * times),
        row("aten::conv2d", "convolution", "convolution", "forward", 2 * times),
        row("phalanx::exchange", "communication", "all-reduce", "communication", 3 * times),
    ]
    table = {
        "device": "cpu", "steps": 20, "step_seconds": 0.01 * times,
        "python_seconds": 0.001, "memory_bytes": 400_000_000,
        "operators": rows, **changes,
    }  # fmt: skip
    paths.profiles.mkdir(exist_ok=True)
    (paths.profiles / f"rank-{rank}.json").write_text(json.dumps(table))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PHALANX_RUNS", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


@pytest.mark.usefixtures("undrawn")
def test_operators_stand_side_by_side_with_ratios(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = []
    for batch in (96, 192):
        for strategy, times in (("allreduce", 1.0), ("bsp", 2.0), ("async", 0.5)):
            paths = write_run(home, f"{strategy}-{batch}", strategy=strategy, batch=batch)
            for rank in (0, 1):
                write_profile(paths, rank, times + rank * times)  # the mean is 1.5 times that
            names.append(paths.id)
    write_study(home, "several", names)
    assert invoke(["report", "--profile", "several"]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert max(len(line) for line in lines if not line.startswith("report")) <= 80
    assert [line for line in lines if line.startswith("step in ms, batch")] != []
    words = [line.split() for line in lines]
    assert ["step", "15", "30", "×2.00", "7.5", "×0.50"] in words
    assert ["convolution", "9", "18", "×2.00", "4.5", "×0.50"] in words
    assert any(line.startswith("convolution backward") for line in lines)
    assert "\x1b[31m" not in captured.out
    page = (home / "several" / "report.html").read_text()
    assert "Operators" in page
    assert "×2.00" in page
    assert "&lt;Conv2d&gt;" in page


@pytest.mark.usefixtures("undrawn")
def test_a_broken_profile_is_none(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = write_run(home, "run")
    write_profile(paths, 0, 1.0, step_seconds=0.0)
    assert invoke(["report", "--profile", "run"]) == 2
    assert "no run of run has a profile" in capsys.readouterr().err
    assert invoke(["report", "run"]) == 0
    assert "Operators" not in (paths.report).read_text()
