"""Each cause is told from the figures of a machine that differ; without a straggler none is."""

from __future__ import annotations

import pytest
from made_stragglers import figures, links, made_run

from phalanx.observe.events.strategy_phases import split_phases
from phalanx.observe.events.timeline import RankLog
from phalanx.observe.speedup import causes
from phalanx.observe.speedup.causes import explain
from phalanx.observe.speedup.from_events import basis_of
from phalanx.observe.speedup.slow_links import NETWORK
from phalanx.observe.speedup.straggler import Straggler, find_straggler, find_waits

SLOW = {1: {"compute": 0.08, "input": 0.02}}
HELD: dict[str, float | str] = {
    "throttled_percent": 70.0,
    "cpu_percent": 99.0,
    "workers_cpu_percent": 190.0,
}
EQUAL = "allreduce:shares=equal"
MS = 1e-3


def _explained(
    logs: list[RankLog],
    *,
    strategy: str = EQUAL,
    equal: bool = True,
    **machines: dict[str, float | str],
) -> Straggler | None:
    names = dict.fromkeys(log.joined.machine for log in logs if log.joined)
    samples = {name: figures(logs, name, **machines.get(name, {})) for name in names}
    late = find_straggler(split_phases(logs, strategy))
    basis = basis_of(logs, strategy, balance=not equal, most=2048)
    return explain(late, basis, samples, equal=equal)


@pytest.mark.parametrize(
    ("cause", "extra", "machine"),
    [
        (causes.THROTTLED, SLOW, HELD),
        (causes.OTHERS, SLOW, {"cpu_percent": 100.0, "workers_cpu_percent": 60.0}),
        (causes.OTHERS, SLOW, {"cpu_percent": 90.0, "cpu_steal": 30.0}),
        (causes.INPUT, {1: {"input": 0.1}}, {}),
        (causes.MEMORY, {1: {"input": 0.1}}, {"major_faults_per_second": 120.0}),
        (causes.MEMORY, SLOW, {"swap_bytes_per_second": 5e6}),
        (causes.SLOW, SLOW, {"cores": 1.0}),
        (causes.SLOW, SLOW, {}),
    ],
)
def test_a_cause_is_what_differs_from_the_others(
    cause: str, extra: dict[int, dict[str, float]], machine: dict[str, float | str]
) -> None:
    found = _explained(made_run(extra), m2=machine)
    assert found is not None
    assert (found.rank, found.machine, found.cause) == (1, "m2", cause)
    assert found.evidence
    assert found.remedy
    assert "shares=equal" in found.remedy


def test_all_machines_throttled_alike_do_not_explain_one() -> None:
    found = _explained(made_run(SLOW), m1=HELD, m2=HELD, m3=HELD)
    assert found is not None
    assert found.cause == causes.SLOW


def test_the_gain_is_what_the_run_gains_without_the_cause() -> None:
    extra, quiet = {1: {"input": 0.1}}, made_run(noise=0.05)
    for late in ((0.0, 1.0), (0.0, 0.5)):
        logs = made_run(extra, noise=0.05, late=late)
        found = _explained(logs)
        assert found is not None
        assert found.gain is not None
        took, then = (one[0].steps[-1].ended - one[0].steps[0].began for one in (logs, quiet))
        assert found.gain == pytest.approx(took / then - 1.0, rel=0.15)


def test_a_saturated_processor_is_slow_at_communicating_too() -> None:
    logs = made_run(SLOW, noise=0.0)
    saturated = _explained(logs, m2={**HELD, "cpu_percent": 100.0})
    idle = _explained(logs, m2={"cpu_percent": 50.0})
    assert saturated is not None
    assert idle is not None
    assert idle.gain == pytest.approx(170 / 70 - 1, rel=0.05)
    assert saturated.gain == pytest.approx(170 / (50 + 20 / 3) - 1, rel=0.05)


def test_machines_under_a_quota_cannot_be_faster_than_it_allows() -> None:
    """They have waited, and so computed faster for a moment than they can all the time."""
    logs = made_run(SLOW, noise=0.0)
    quota: dict[str, float | str] = {"cpu_source": "cgroup", "workers_cpu_percent": 160.0}
    found = _explained(logs, m1=quota, m2={**HELD, "cpu_percent": 100.0}, m3=quota)
    assert found is not None
    assert found.gain == pytest.approx(1 / 0.8 - 1, rel=0.05)


def test_a_slow_link_that_costs_more_is_said_instead_of_a_chance_straggler() -> None:
    logs = made_run({1: {"compute": 0.005}}, noise=0.0)
    alone = _explained(logs)
    assert alone is not None
    assert alone.cause != NETWORK
    for log in logs:
        own = f"m{log.rank + 1}"
        others = {f"m{n}" for n in (1, 2, 3)} - {own}
        takes = {other: 1.4 if "m3" in (own, other) else 0.1 for other in others}
        log.links = links(log.rank, takes, count=10_000_000, periods=6)
    found = _explained(logs)
    assert found is not None
    assert (found.machine, found.cause) == ("m3", NETWORK)


def test_with_shares_by_speed_the_gain_is_that_of_new_shares() -> None:
    """A worker three times as slow has a third of the samples, and would have as many as others."""
    logs = made_run({}, noise=0.0)
    for log in logs:
        samples = 20 if log.rank == 1 else 60
        log.steps = [step._replace(samples=samples) for step in log.steps]
    found = _explained(logs, strategy="allreduce", equal=False)
    assert found is not None
    assert found.gain == pytest.approx(70 / (20 + 140 * 50 / 60 / 3) - 1.0, rel=0.05)
    assert found.remedy
    assert "shares=equal" not in found.remedy


def test_workers_of_one_machine_are_not_told_apart_by_its_figures() -> None:
    for here, cause in ((HELD, None), ({**HELD, "workers_cpu_percent": 60.0}, causes.OTHERS)):
        found = _explained(made_run(SLOW, machines=False), here=here)
        assert found is not None
        assert found.cause == cause
    reads = _explained(made_run({1: {"input": 0.1}}, machines=False))
    assert reads is not None
    assert reads.cause == causes.INPUT


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_straggler(seed: int) -> None:
    assert _explained(made_run(noise=0.4, seed=seed), m2={"throttled_percent": 50.0}) is None


def test_a_worker_whose_lateness_costs_next_to_nothing_is_not_named() -> None:
    """Alike machines, of which the first has a little more to do, with shares by speed."""
    logs = made_run({1: {"input": 0.004}}, noise=0.1)
    late = find_straggler(split_phases(logs, "allreduce"))
    assert late is not None
    assert _explained(logs, strategy="allreduce", equal=False) is None


def test_who_made_whom_wait() -> None:
    logs = made_run(SLOW, noise=0.0, count=100)
    waits = find_waits(split_phases(logs, EQUAL), {0: "m1", 1: "m2", 2: "m3"})
    assert [(wait.waiting, wait.late) for wait in waits] == [("m1", "m2"), ("m3", "m2")]
    assert waits[0].seconds == pytest.approx(100 * 100 * MS)
    workers = find_waits(split_phases(logs, EQUAL), dict.fromkeys(range(3), "here"))
    assert workers[0].late == "worker 1"
