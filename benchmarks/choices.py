"""``python -m benchmarks choices``: what the planner chooses in made cases, and what runs say.

Each case is a lab of its own; the choice, the next best numbers of machines and, where it is the
point, the strategy of unknown accuracy are run. Needs root, for the labs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, phalanx_command, report
from phalanx.lab.lab import Lab

JOBS = "benchmarks/scripts/jobs_in_turn.py"
MOST = 3
"""Plans of a case that are run."""


@dataclass(frozen=True)
class Case:
    script: str
    words: tuple[str, ...]
    machines: int
    rate: str
    cpu: str | None = None
    codec: str | None = None
    """A strategy that is run beside the choice, on the same machines."""


CASES = {
    "digits, five machines at 20 Mbit/s": Case("examples/digits.py", (), 5, "20mbit"),
    "a sleeping job, three machines at 1 Gbit/s": Case(
        JOBS, ("--jobs", "small", "--epochs", "40"), 3, "1gbit"
    ),
    "a large gradient, two machines at 50 Mbit/s": Case(
        JOBS, ("--jobs", "large"), 2, "50mbit", codec="allreduce+int8"
    ),
    "a large gradient, two machines at 1 Gbit/s": Case(
        JOBS, ("--jobs", "large"), 2, "1gbit", codec="allreduce+int8"
    ),
    "a CNN, processors at 80, 80 and 20 %": Case(JOBS, ("--jobs", "cnn"), 3, "1gbit", "80,80,20"),
}
Plan = dict[str, Any]


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks choices")
    parser.add_argument("--only", help="a part of a case's name")
    chosen = parser.parse_args(words)
    for name, case in CASES.items():
        if (chosen.only or "") in name:
            with ExitStack() as ends:
                folder = ends.enter_context(tempfile.TemporaryDirectory(prefix="phalanx-bench-"))
                lab = Lab.up(
                    case.machines, name=f"choice{os.getpid()}", rate=case.rate, cpu=case.cpu
                )
                _try(name, case, ends.enter_context(lab), Path(folder))


def _try(name: str, case: Case, lab: Lab, folder: Path) -> None:
    blueprint = folder / "lab.yaml"
    lab.write_blueprint(blueprint)
    _phalanx(folder, "pool", "probe", str(blueprint))
    words = ("plan", case.script, "--pool", str(blueprint), "--json", "--", *case.words)
    found = json.loads(_phalanx(folder, *words).splitlines()[-1])
    choice, plans = found["chosen"], [found["chosen"]]
    plans += [plan for plan in found["ranked"] if plan != choice][: MOST - 1]
    report(f"{name}: the choice", plan=_label(choice), reasons=found["reasons"])
    for plan in plans:
        _run(name, case, plan, blueprint, folder)
    if case.codec:
        spread_out = next(p for p in plans if len(p["machines"]) == case.machines)
        known = [p for p in found["unknown"] if p["strategy"] == case.codec]
        encoded = known[0] if known else {**spread_out, "strategy": case.codec}
        listed = "faster, accuracy unknown" if known else "not listed"
        _run(name, case, encoded, blueprint, folder, listed=listed)


def _run(name: str, case: Case, plan: Plan, blueprint: Path, folder: Path, **more: object) -> None:
    runs = folder / "runs"
    before = set(runs.glob("*/summary.json"))
    _phalanx(
        folder, "run", case.script, "--pool", str(blueprint), "--machines",
        ",".join(plan["machines"]), "--strategy", plan["strategy"], "--", *case.words,
    )  # fmt: skip
    (path,) = set(runs.glob("*/summary.json")) - before
    summary = json.loads(path.read_text())
    report(
        f"{name}: {_label(plan)}",
        predicted={
            "samples_per_second": round(plan["samples_per_second"]["value"]),
            "seconds": round(plan["seconds"]["value"], 1),
        },
        measured={
            "samples_per_second": round(summary["samples_per_second"]),
            "seconds": round(summary["seconds"], 1),
        },
        **more,
    )


def _label(plan: Plan) -> str:
    return f"{plan['strategy']} on {', '.join(plan['machines'])}"


def _phalanx(folder: Path, *words: str) -> str:
    ended = subprocess.run(
        phalanx_command(*words), cwd=ROOT, capture_output=True, text=True, timeout=600,
        env={**os.environ, "PHALANX_RUNS": str(folder / "runs")}, check=False,
    )  # fmt: skip
    if ended.returncode:
        raise SystemExit(f"{' '.join(words)}: {ended.stderr[-600:]}")
    return ended.stdout
