"""Jobs, machines and probes made up for tests of the planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from phalanx.plan.cost.model import CostModel
from phalanx.plan.job import JobProfile, MachineCosts, WorkCurve
from phalanx.plan.prediction import Prediction
from phalanx.pool.machine import Machine
from phalanx.pool.measured import LinkFigures, Probe

MBIT = 1e6 / 8
FAST = 1e15


def costs(
    each: float = 1e-3, *, fixed: float = 0.0, update: float = 0.0, start: float = 0.0
) -> MachineCosts:
    """``each`` seconds per sample, measured exactly."""
    work = WorkCurve(fixed=fixed, each=each, error=0.01, smallest=1, largest=1 << 20)
    return MachineCosts(work=work, update=update, start=start)


def job(each: Mapping[str, float | MachineCosts], **other: object) -> JobProfile:
    """By default 100 steps of 64 samples of a model of a million parameters."""
    found = {n: c if isinstance(c, MachineCosts) else costs(c) for n, c in each.items()}
    given = {"gradient_bytes": 4_000_000, "batch": 64, "samples": 6400, "epochs": 1, **other}
    return JobProfile(key="k", state_bytes=0, costs=found, **given)  # type: ignore[arg-type]


def machines(names: Sequence[str] | str, **other: object) -> list[Machine]:
    return [Machine(name=n, host=f"{n}.test", cores=4, **other) for n in names]  # type: ignore[arg-type]


def probe(names: Sequence[str] | str, rates: float | Mapping[str, float]) -> Probe:
    """Links of ``rates`` bytes a second, without latency or overhead."""
    own = rates if isinstance(rates, Mapping) else dict.fromkeys(names, rates)
    links = [LinkFigures(a, b, 1e-6, min(own[a], own[b])) for a in names for b in names if a != b]
    return Probe("2026-01-01", 1.0, 1.0, list(names), links, [], list(names), 1e-6)


def predict(
    work: JobProfile, pool: Sequence[Machine], links: Probe | None, strategy: str
) -> Prediction:
    """What training on all of a pool comes to."""
    return CostModel(work, links).predict(pool, strategy)
