"""Sixty generated loops on three machines, of which one is slow: they end as plain Python does."""

from __future__ import annotations

import json
import re
import runpy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from ssh_runs import Bench
from whole_pieces import MODELS
from whole_scripts import WholeScript, script_of, text_of

pytestmark = pytest.mark.timeout(1200)
LAB = {"count": 3, "cpu": "80,80,20"}
LOOPS, A_RUN = 60, 20
ALL = """
import json, runpy, sys, torch
def numbers(value):
    value = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
    return value.double().flatten().tolist()
for name in sys.argv[1:]:
    found = runpy.run_path(name + ".py", run_name="__main__")["RESULT"]
    found["weights"] = {key: numbers(value) for key, value in found["weights"].items()}
    print("ended", name, json.dumps(found), flush=True)
"""


def _alone(script: Path) -> dict[str, Any] | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found: dict[str, Any] = runpy.run_path(str(script), run_name="__main__")["RESULT"]
        except (RuntimeError, ValueError):  # batch norm of one sample, for example
            return None
    return found if all(torch.isfinite(torch.tensor(found["losses"]))) else None


@pytest.fixture(scope="module")
def loops(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[WholeScript, str, Any]]:
    """Of each loop that plain Python trains: its text, and what it ends with."""
    folder, found = tmp_path_factory.mktemp("alone"), {}
    for seed in range(10 * LOOPS):
        script, path = script_of(seed * 7919), folder / f"loop_{seed}.py"
        if MODELS[script.model].random:
            continue  # its numbers are those of one process in the first steps of a run alone
        path.write_text(text_of(script), encoding="utf-8")
        if len(found) < LOOPS and (wanted := _alone(path)) is not None:
            found[path.stem] = (script, path.read_text(encoding="utf-8"), wanted)
    return found


@pytest.mark.parametrize("part", [pytest.param(0, marks=pytest.mark.machines), 1, 2])
def test_they_end_as_plain_python_does(
    bench: Bench, loops: dict[str, tuple[WholeScript, str, Any]], part: int
) -> None:
    names = list(loops)[part * A_RUN : (part + 1) * A_RUN]
    for name in names:
        (bench.project / f"{name}.py").write_text(loops[name][1], encoding="utf-8")
    (bench.project / "all.py").write_text(ALL, encoding="utf-8")
    words = ["run", "all.py", "--pool", str(bench.pool), "--view", "whole", "--", *names]
    ended = bench.do(*words, limit=900)
    assert ended.code == 0, ended.text
    results = dict(re.findall(r"^ended (\w+) (.*)$", ended.text, re.M))
    for name in names:
        script, _, wanted = loops[name]
        found = json.loads(results[name])
        assert found["steps"] == wanted["steps"], name
        assert found["rates"] == pytest.approx(wanted["rates"], rel=1e-10), name
        for key, value in wanted["weights"].items():
            flat = torch.view_as_real(value.resolve_conj()) if value.is_complex() else value
            weights = torch.tensor(found["weights"][key], dtype=torch.float64)
            scale = max(1.0, float(value.abs().max()))
            gap = float((weights - flat.double().flatten()).abs().max())
            assert gap <= script.tolerance * scale, f"{name}, {key}: {gap:.1e} apart"
