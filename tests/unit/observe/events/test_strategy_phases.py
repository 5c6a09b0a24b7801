"""Phases as they truly went, and the worker that the others wait for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made_events
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import CLOCK, WALL, write_run

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events import event_types as ev
from phalanx.observe.events.strategy_phases import PhaseSteps, WaitRule, split_phases
from phalanx.observe.events.timeline import RankLog, WorkerStep, read_ranks
from phalanx.observe.speedup.straggler import WARM_UP, find_straggler
from phalanx.observe.summary.summary import summarise


def append(paths: RunPaths, rank: int, *events: ev.Event) -> None:
    with paths.events_of(rank).open("ab") as file:
        file.write(b"".join(map(ev.encode, events)))


def joined(rank: int, time: float, phase: str) -> ev.Joined:
    return made_events.joined(rank, time=time, wall=WALL + time - CLOCK, phase=phase)


def switched(time: float, before: str, after: str) -> ev.Switched:
    return ev.Switched(
        time=time, rank=0, epoch=0, at_epoch=0.5, before=before, after=after, pause=0.001
    )


def step(rank: int, began: float, **changes: Any) -> WorkerStep:
    values: dict[str, Any] = {
        "epoch": 0, "number": 0, "samples": 8, "input": 0.0, "compute": 0.5, "send": 0.0,
        "wait": 0.0, "reduce": 0.0, "update": 0.0, "settle": 0.0, "staleness": 0, "loss": None,
    }  # fmt: skip
    return WorkerStep(rank=rank, began=began, **(values | changes))


def log(rank: int, *events: ev.Event, steps: int = 0) -> RankLog:
    made = RankLog(rank)
    for event in events:
        made.add(event)
    made.steps = [step(rank, float(i)) for i in range(steps)]
    return made


def test_every_switch_begins_a_phase_also_back_and_by_hand() -> None:
    turns = [
        switched(2.0, "allreduce", "async"),
        switched(4.0, "async", "allreduce"),
        switched(7.0, "allreduce", "ssp:bound=2"),
    ]
    ranks = [log(0, joined(0, 0.0, ""), *turns, steps=10), log(1, joined(1, 0.0, ""), steps=10)]
    phases = split_phases(ranks, "switch:on=straggler")
    assert [phase.name for phase in phases] == ["allreduce", "async", "allreduce", "ssp:bound=2"]
    assert [[len(part) for part in phase.steps] for phase in phases] == [
        [2, 2], [2, 2], [3, 3], [3, 3],
    ]  # fmt: skip
    assert [phase.waiting for phase in phases] == [
        WaitRule.LOCKSTEP, WaitRule.NOBODY, WaitRule.LOCKSTEP, WaitRule.BOUNDED,
    ]  # fmt: skip


def test_a_resumed_run_may_begin_in_a_later_phase() -> None:
    ranks = [log(r, joined(r, 0.0, "async"), steps=3) for r in range(2)]
    (phase,) = split_phases(ranks, "allreduce@0.5/async")
    assert (phase.name, phase.lockstep) == ("async", False)


def test_a_second_training_begins_with_the_first_phase_again() -> None:
    told = [joined(0, 0.0, "allreduce"), switched(2.0, "allreduce", "async"),
            joined(0, 5.0, "allreduce"), switched(8.0, "allreduce", "async")]  # fmt: skip
    other = [joined(1, 0.0, "allreduce"), joined(1, 5.0, "allreduce")]
    ranks = [log(0, *told, steps=10), log(1, *other, steps=10)]
    phases = split_phases(ranks, "switch:at=0.5")
    assert [phase.name for phase in phases] == ["allreduce", "async", "allreduce", "async"]
    assert [len(phase.steps[1]) for phase in phases] == [2, 3, 3, 2]


@given(st.lists(st.floats(0.5, 50.0), max_size=6).map(sorted), st.integers(0, 40))
def test_no_step_is_lost_or_counted_twice(times: list[float], steps: int) -> None:
    turns = [switched(time, "allreduce", "async") for time in times]
    ranks = [log(0, joined(0, 0.0, ""), *turns, steps=steps), log(1, steps=steps)]
    phases = split_phases(ranks, "allreduce")
    for rank in range(2):
        found = [one for phase in phases for one in phase.steps[rank]]
        assert found == ranks[rank].steps


def rounds_of(paths: RunPaths, rank: int, waits: list[float]) -> None:
    began = [CLOCK + 2.0 + i + 0.9 - wait for i, wait in enumerate(waits)]
    append(paths, rank, made_events.steps(rank, len(waits), began=began, wait=waits))


def test_rounds_are_communication_and_no_steps(tmp_path: Path) -> None:
    plain = summarise(write_run(tmp_path, "plain", strategy="localsgd:every=2", noise=0.0))
    paths = write_run(tmp_path, "rounds", strategy="localsgd:every=2", noise=0.0)
    for rank in range(2):
        rounds_of(paths, rank, [0.25, 0.25])
    found = summarise(paths)
    assert [w.steps for w in found.per_worker] == [w.steps for w in plain.per_worker]
    assert found.step_seconds == plain.step_seconds and found.samples == plain.samples
    assert found.per_worker[0].mean_staleness == plain.per_worker[0].mean_staleness
    assert found.time.wait == pytest.approx((plain.time.wait or 0.0) + 0.5)
    assert found.time.compute == plain.time.compute


def test_of_workers_apart_the_last_one_at_the_rounds_is_blamed(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "run", strategy="localsgd:every=2", noise=0.0, steps=20)
    rounds_of(paths, 0, [0.0, 0.0, 0.0])
    rounds_of(paths, 1, [0.5, 0.25, 0.5])
    late = summarise(paths).straggler
    assert late is not None and (late.rank, late.share, late.steps) == (0, 1.0, 3)
    assert late.seconds == pytest.approx(1.25)
    assert 0.0 < late.cost < 1.0


def phase_of(
    waiting: WaitRule, *ranks: list[WorkerStep], teams: tuple[int, ...] = ()
) -> PhaseSteps:
    lists = list(ranks)
    teams = teams or (0,) * len(lists)
    lockstep = waiting is WaitRule.LOCKSTEP
    return PhaseSteps("made", lockstep, lists, [[] for _ in lists], waiting, teams)


def test_at_a_bound_all_waiting_is_for_the_slowest() -> None:
    fast = [step(0, 2.0 * i, compute=0.5, wait=1.5) for i in range(WARM_UP + 32)]
    slow = [step(1, 2.0 * i, compute=2.0) for i in range(WARM_UP + 32)]
    late = find_straggler([phase_of(WaitRule.BOUNDED, fast, slow)])
    assert late is not None and (late.rank, late.waiting) == (1, "bounded")
    assert late.seconds == pytest.approx(48.0) and late.cost == pytest.approx(0.75)
    assert late.slower == pytest.approx(4.0)


def test_only_ones_own_team_waits() -> None:
    count = range(WARM_UP + 32)
    quick = [[step(rank, 2.0 * i, wait=0.0) for i in count] for rank in range(2)]
    kept = [step(2, 2.0 * i, wait=1.0) for i in count]
    slow = [step(3, 2.0 * i, compute=1.5) for i in count]
    late = find_straggler([phase_of(WaitRule.LOCKSTEP, *quick, kept, slow, teams=(0, 0, 1, 1))])
    assert late is not None and late.rank == 3
    assert late.seconds == pytest.approx(32.0)


@pytest.mark.parametrize(("steps", "late"), [(4, False), (47, False), (48, True)])
def test_a_straggler_is_named_after_enough_steps(steps: int, late: bool) -> None:
    """The first ones, in which calls are compared and a child trains beside, say nothing."""
    quick = [step(0, 2.0 * i, wait=1.0) for i in range(steps)]
    slow = [step(1, 2.0 * i, compute=1.5) for i in range(steps)]
    for waiting in (WaitRule.LOCKSTEP, WaitRule.BOUNDED, WaitRule.NOBODY):
        assert bool(find_straggler([phase_of(waiting, quick, slow)])) == late


@pytest.mark.parametrize("waiting", [WaitRule.LOCKSTEP, WaitRule.BOUNDED, WaitRule.NOBODY])
def test_slow_first_steps_make_no_straggler(waiting: WaitRule) -> None:
    def steps(rank: int) -> list[WorkerStep]:
        last = [(rank + i) % 2 for i in range(80)]
        return [
            step(rank, 10.0 * i, compute=8.0 if i < WARM_UP and rank else 0.5 + 0.001 * last[i],
                 wait=7.5 if i < WARM_UP and not rank else 0.0)
            for i in range(80)
        ]  # fmt: skip

    assert find_straggler([phase_of(waiting, steps(0), steps(1))]) is None


def test_slowness_is_measured_at_equal_shares() -> None:
    """A small share makes a worker look slow: most of its step is what every step costs."""
    even = [[step(r, 1.0 * i, compute=0.5 + 0.5 * r) for i in range(4)] for r in range(2)]
    fast = even[0] + [step(0, 10.0 + i, samples=15, compute=0.6) for i in range(60)]
    slow = even[1] + [step(1, 10.0 + i, samples=1, compute=0.6) for i in range(60)]
    phases = [phase_of(WaitRule.LOCKSTEP, fast, slow)]
    late = find_straggler(phases, balanced=9.0)
    assert late is not None and late.slower == pytest.approx(2.0)


def test_shares_are_told_with_what_they_did(tmp_path: Path) -> None:
    paths = write_run(tmp_path, "run", steps=10)
    assert summarise(paths).shares is None and summarise(paths).balance is None
    steps = read_ranks(paths)[0].steps
    times = [steps[10].began, steps[20].began]
    for time, shares in zip(times, ([0.7, 0.3], [0.8, 0.2]), strict=True):
        append(paths, 0, ev.Balanced(time=time, rank=0, epoch=1, shares=shares))
    found = summarise(paths)
    assert found.shares == [0.8, 0.2]
    assert [worker.share for worker in found.per_worker] == [0.8, 0.2]
    assert found.balance is not None and found.balance.changes == 2
    assert found.balance.rate_before and found.balance.rate_after
