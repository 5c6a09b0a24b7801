"""``python -m benchmarks predictions``: what the planner predicts, against what runs come to.

Five machines with unequal links and speeds, jobs that sleep instead of computing, six strategies,
three selections, two sizes; or, with ``--busy``, two machines that compute, one of them slowed.
Each selection and strategy is launched once and trains both jobs in turn. Needs root, for the lab.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from benchmarks.harness import ROOT, phalanx_command, report
from phalanx.lab.lab import Lab
from phalanx.launch.profile.profile_job import profile_job
from phalanx.plan.cost.model import CostModel
from phalanx.plan.cost.network import USUAL_HANDLING
from phalanx.plan.job import JobProfile, MachineCosts
from phalanx.pool.blueprint import read_blueprint
from phalanx.pool.machine import Pool
from phalanx.pool.measured import Probe, read_probe


@dataclass(frozen=True)
class Suite:
    rates: str
    speeds: dict[str, float]
    selections: tuple[str, ...]
    jobs: tuple[str, ...]


SLEEPING = Suite(
    "m3=500mbit,m4=300mbit,m5=200mbit,1gbit",
    {"m1": 1.0, "m2": 1.0, "m3": 0.5, "m4": 1.0, "m5": 0.5},
    ("m1,m2", "m1,m3,m4", "m1,m2,m3,m4,m5"),
    ("small", "large"),
)
BUSY = Suite("1gbit", {"m1": 1.0, "m2": 0.5}, ("m1", "m1,m2"), ("mlp", "cnn"))
STRATEGIES = ("allreduce", "bsp", "async", "ssp:bound=3", "dssp", "localsgd:every=8")
SCRIPT = Path("benchmarks/scripts/jobs_in_turn.py")
SAME = ("allreduce", "bsp")
"""Those that the planner may choose without evidence about accuracy."""
Case = tuple[str, str, str]
"""Selection, strategy, job."""


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks predictions")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--busy", action="store_true", help="jobs that compute, on two machines")
    parser.add_argument("--keep", metavar="FOLDER", help="a folder for all that runs leave")
    chosen = parser.parse_args(words)
    strategies, suite = chosen.strategies.split(","), BUSY if chosen.busy else SLEEPING
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory(prefix="phalanx-bench-")))
        if chosen.keep:
            (folder := Path(chosen.keep).absolute()).mkdir(parents=True, exist_ok=True)
        name = f"bench{os.getpid()}"
        lab = ends.enter_context(Lab.up(len(suite.speeds), name=name, rate=suite.rates))
        blueprint = folder / "lab.yaml"
        lab.write_blueprint(blueprint)
        if chosen.busy:
            one_core_each(lab, blueprint)
        _phalanx("pool", "probe", str(blueprint), folder=folder)
        expected = predict_all(suite, read_blueprint(blueprint), blueprint, strategies)
        outcomes: dict[Case, list[float]] = {case: [] for case in expected}
        for number in range(chosen.repeats):
            for strategy in strategies if number % 2 == 0 else reversed(strategies):
                for selection in suite.selections:
                    rates = _outcome(suite, blueprint, selection, strategy, folder)
                    for job, rate in rates.items():
                        outcomes[selection, strategy, job].append(rate)
    tell(suite, expected, outcomes)


def one_core_each(lab: Lab, blueprint: Path) -> None:
    """Machines that compute would otherwise share the cores of this one."""
    for number, machine in enumerate(lab.machines):
        first = psutil.Process(machine.pid)
        for process in (first, *first.children(recursive=True)):
            process.cpu_affinity([number])
    text = re.sub(r'"cores": [0-9]+', '"cores": 1', blueprint.read_text())
    blueprint.write_text(text)


def predict_all(
    suite: Suite, pool: Pool, blueprint: Path, strategies: Sequence[str]
) -> dict[Case, float]:
    """Samples a second."""
    found, probe = {}, _handled(read_probe(blueprint), suite.speeds)
    for job in suite.jobs:
        profile = profile_job(SCRIPT, ["--jobs", job], pool, pool.machines[:1])
        model = CostModel(_slowed(profile, suite.speeds), probe)
        for selection in suite.selections:
            machines = [m for m in pool.machines if m.name in selection.split(",")]
            for strategy in strategies:
                expected = model.predict(machines, strategy)
                found[selection, strategy, job] = expected.samples_per_second.value
    return found


def _slowed(profile: JobProfile, speeds: dict[str, float]) -> JobProfile:
    """The machines are alike, and slowed by ``--slow``, as far as they compute."""
    (plain,) = profile.costs.values()
    return msgspec.structs.replace(
        profile, costs={name: _scaled(plain, 1.0 / speed) for name, speed in speeds.items()}
    )


def _handled(probe: Probe | None, speeds: dict[str, float]) -> Probe | None:
    """``--slow`` also slows what messages take from computing; the probe ran at full speed."""
    if probe is None:
        return None
    replace = msgspec.structs.replace
    links = [
        replace(link, handling=(link.handling or USUAL_HANDLING) / speeds[link.source])
        for link in probe.links
    ]
    return replace(probe, links=links)


def _scaled(costs: MachineCosts, factor: float) -> MachineCosts:
    work = msgspec.structs.replace(
        costs.work, fixed=costs.work.fixed * factor, each=costs.work.each * factor
    )
    return msgspec.structs.replace(costs, work=work)


def _outcome(
    suite: Suite, blueprint: Path, selection: str, strategy: str, folder: Path
) -> dict[str, float]:
    speeds = ",".join(str(suite.speeds[name]) for name in selection.split(","))
    ended = _phalanx(
        "run", str(SCRIPT), "--pool", str(blueprint), "--machines", selection, "--strategy",
        strategy, "--slow", speeds, "--checkpoint-every", "0", "--", "--jobs",
        ",".join(suite.jobs), folder=folder,
    )  # fmt: skip
    lines = (line for line in ended.splitlines() if line.startswith('{"job"'))
    return {row["job"]: row["rate"] for row in map(json.loads, lines)}


def _phalanx(*words: str, folder: Path) -> str:
    ended = subprocess.run(
        phalanx_command(*words),
        cwd=ROOT,
        env={**os.environ, "PHALANX_RUNS": str(folder / "runs")},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if ended.returncode:
        raise SystemExit(f"{' '.join(words)}: {ended.stderr[-600:]}")
    return ended.stdout


def tell(suite: Suite, expected: dict[Case, float], outcomes: dict[Case, list[float]]) -> None:
    errors = []
    for case, rates in outcomes.items():
        median = statistics.median(rates)
        error = expected[case] / median - 1.0
        errors.append(abs(error))
        report(
            f"samples/s predicted / measured, {' '.join(case)}",
            value=1.0 + error,
            predicted=round(expected[case], 1),
            spread=round(max(rates) / min(rates) - 1.0, 3),
            measured=[round(rate, 1) for rate in rates],
        )
    report("mean error of samples/s", value=statistics.fmean(errors), bar="<= 0.07")
    report("median error of samples/s", value=statistics.median(errors), bar="<= 0.04")
    for job in suite.jobs:
        mine = [case for case in expected if case[2] == job and case[1] in SAME]
        if mine:
            choice = max(mine, key=lambda case: expected[case])
            best = max(statistics.median(outcomes[case]) for case in mine)
            share = statistics.median(outcomes[choice]) / best
            name = " ".join(choice[:2])
            report(f"the chosen plan of {job}, share of the best", value=share, plan=name)
