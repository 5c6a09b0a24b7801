"""What machines are worth: the model against scripted laps whose truth is known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from made_events import joined

from phalanx.observe.events.event_types import WorkerLost
from phalanx.observe.events.step_intervals import Lap, RankWindow, windows_of
from phalanx.observe.events.strategy_phases import PhaseSteps, WaitRule
from phalanx.observe.events.timeline import RankLog, WorkerStep
from phalanx.observe.speedup.from_events import judge
from phalanx.observe.speedup.speedup import BALANCE, FEWER, Option, Way, Worth, worth
from phalanx.observe.speedup.speedup_words import GAIN, advise, as_sentence

UPDATE = 0.001
BATCH = 120


def lockstep(
    paces: Sequence[float],
    shares: Sequence[float] | None = None,
    *,
    link: float = 0.002,
    laps: int = 12,
    wobble: float = 0.05,
) -> dict[int, RankWindow]:
    """Everyone waits for the last, then ``link`` seconds are spent on the wire."""
    draw = random.Random(5)
    parts = shares or [1 / len(paces)] * len(paces)
    rows: list[list[Lap]] = [[] for _ in paces]
    for _ in range(laps):
        sizes = [round(BATCH * part) for part in parts]
        busy = [n * p * (1 + wobble * draw.random()) for n, p in zip(sizes, paces, strict=True)]
        for rank, own in enumerate(busy):
            seconds = max(busy) + link + UPDATE
            rows[rank].append(Lap(0, sizes[rank], own, max(busy) - own, UPDATE, seconds))
    return {r: RankWindow(tuple(row), each=paces[r]) for r, row in enumerate(rows)}


def free(paces: Sequence[float], *, link: float = 0.002, laps: int = 40) -> dict[int, RankWindow]:
    lap = [Lap(0, 30, 30 * p, 0.0, UPDATE, 30 * p + link + UPDATE) for p in paces]
    return {r: RankWindow((lap[r],) * laps, each=p) for r, p in enumerate(paces)}


def judged(
    ranks: dict[int, RankWindow],
    waiting: WaitRule = WaitRule.LOCKSTEP,
    *,
    balanced: bool = False,
    places: Sequence[str] | None = None,
) -> Worth:
    names = dict(enumerate(places or [f"m{rank + 1}" for rank in ranks]))
    way = Way(waiting, dict.fromkeys(ranks, 0), waiting is not WaitRule.NOBODY, balanced)
    found = worth(ranks, names, way)
    assert found is not None
    return found


def option(found: Worth, kind: str, *machines: str) -> Option:
    return next(
        o for o in found.predicted if o.kind == kind and (not machines or o.machines == [*machines])
    )


def true_rate(ranks: dict[int, RankWindow]) -> float:
    laps = ranks[0].laps
    return sum(lap.samples for w in ranks.values() for lap in w.laps) / sum(x.seconds for x in laps)


PACES = st.lists(st.floats(1e-4, 1e-2), min_size=2, max_size=6)
LINKS = st.floats(0.0, 0.3)


@settings(max_examples=25)
@given(PACES, LINKS, st.booleans())
def test_the_run_as_it_is_is_reproduced(paces: list[float], link: float, uneven: bool) -> None:
    whole = sum(1 / pace for pace in paces)
    shares = [1 / pace / whole for pace in paces] if uneven else None
    assume(shares is None or min(shares) * BATCH > 1)
    ranks = lockstep(paces, shares, link=link)
    found = judged(ranks)
    assert found.predicted[0].samples_per_second == pytest.approx(true_rate(ranks), rel=0.02)
    assert found.samples_per_second == pytest.approx(true_rate(ranks), rel=0.02)
    assert sum(part.share for part in found.machines.values()) == pytest.approx(1.0)


@settings(max_examples=25)
@given(PACES, LINKS)
def test_leaving_the_slowest_out_is_predicted_as_it_turns_out(
    paces: list[float], link: float
) -> None:
    """The same laps, made again without the slowest machine, take as long as was foretold."""
    assume(len(paces) > 2)
    slowest = max(range(len(paces)), key=lambda rank: paces[rank])
    kept = [pace for rank, pace in enumerate(paces) if rank != slowest]
    names = [f"m{rank + 1}" for rank in range(len(paces)) if rank != slowest]
    told = option(judged(lockstep(paces, link=link, wobble=0.0)), FEWER, *names)
    assert told.samples_per_second == pytest.approx(
        true_rate(lockstep(kept, link=link, wobble=0.0)), rel=0.05
    )


@settings(max_examples=25)
@given(PACES, LINKS)
def test_balancing_is_predicted_as_it_turns_out(paces: list[float], link: float) -> None:
    whole = sum(1 / pace for pace in paces)
    shares = [1 / pace / whole for pace in paces]
    assume(min(shares) * BATCH > 4)
    told = option(judged(lockstep(paces, link=link, wobble=0.0)), BALANCE)
    after = true_rate(lockstep(paces, shares, link=link, wobble=0.0))
    assert told.samples_per_second == pytest.approx(after, rel=0.15)


@settings(max_examples=25)
@given(st.integers(2, 6), st.floats(1e-4, 1e-2))
def test_equal_machines_are_never_advised_away_when_communication_is_small(
    count: int, pace: float
) -> None:
    link = 0.05 * pace * BATCH / count
    ranks = lockstep([pace] * count, link=max(0.0, link - UPDATE))
    ranks = {r: replace(w, laps=tuple(x._replace(update=0.0) for x in w.laps))
             for r, w in ranks.items()}  # fmt: skip
    advice = advise(judged(ranks))
    assert advice is None or " help: " in advice


@settings(max_examples=25)
@given(st.floats(2.5, 20.0), st.integers(2, 5))
def test_a_machine_that_holds_equal_ones_up_is_advised_away(slower: float, others: int) -> None:
    paces = [1e-3] * others + [1e-3 * slower]
    found = judged(lockstep(paces, link=1e-4))
    gain = option(found, FEWER, *list(found.machines)[:-1]).times
    advice = advise(found)
    assert (gain >= GAIN) == (f"(--machines {','.join(list(found.machines)[:-1])}:" in advice)
    assert found.waiting.name == list(found.machines)[-1]
    assert found.waiting.slower == pytest.approx(slower, rel=0.05)


def test_the_fourfold_slower_machine_in_words() -> None:
    found = judged(lockstep([1e-3, 1e-3, 4.1e-3], wobble=0.0))
    assert advise(found) == (
        "m3 is 4.1 times slower than the others and they wait 74 % of the time for it: leave it "
        "out (--machines m1,m2: about 2.7 times faster) or balance it (without shares=equal: about "
        "3.0 times faster)"
    )


def test_two_workers_of_one_machine_are_named_as_workers() -> None:
    found = judged(lockstep([1e-3, 4e-3], wobble=0.0), places=["here", "here"])
    assert list(found.machines) == ["worker 0", "worker 1"]
    assert "leave it out (--workers 1:" in (advise(found) or "")


def test_asynchronous_speeds_add_up_and_nobody_is_waited_for() -> None:
    found = judged(free([1e-3, 4e-3]), WaitRule.NOBODY)
    assert found.waiting is None
    rates = [part.samples_per_second for part in found.machines.values()]
    assert found.predicted[0].samples_per_second == pytest.approx(sum(rates))
    assert rates[0] == pytest.approx(30 / 0.033)
    assert "help" in (advise(found) or "")


def test_what_holds_only_now_and_then_is_not_advised() -> None:
    """In half of the time the second machine is slow, in the other half it is the faster one."""
    first, second = lockstep([1e-3, 9e-3], laps=20), lockstep([9e-4, 3e-4], laps=20, link=0.0)
    ranks = {
        rank: RankWindow(first[rank].laps + second[rank].laps, each=first[rank].each)
        for rank in first
    }
    assert advise(judged(ranks)) is None


def step(
    rank: int, number: int, *, samples: int = 60, compute: float = 0.25, **more: float
) -> WorkerStep:
    values = {"send": 0.0, "wait": 0.0, "reduce": 0.01, "update": 0.01, "settle": 0.0} | more
    return WorkerStep(
        rank=rank, epoch=0, number=number, began=float(number), samples=samples, input=0.0,
        compute=compute, staleness=0, loss=None, **values,
    )  # fmt: skip


def in_a_row(steps: Sequence[WorkerStep]) -> list[WorkerStep]:
    """Without a pause between them."""
    found: list[WorkerStep] = []
    for one in steps:
        found.append(one._replace(began=found[-1].ended if found else 0.0))
    return found


def logs(count: int) -> list[RankLog]:
    fast = [step(0, i, wait=0.75) for i in range(count)]
    slow = [step(1, i, compute=1.0) for i in range(count)]
    return [RankLog(0, steps=fast), RankLog(1, steps=slow)]


def test_nothing_is_said_before_there_is_enough() -> None:
    assert judge(logs(10), "allreduce", balance=False) is None
    found = judge(logs(11), "allreduce", balance=False)
    assert found.waiting.name == "worker 1"
    assert "about 2.0 times faster" in found.advice


def test_the_work_between_two_rounds_is_one_lap() -> None:
    steps = [[step(0, i) for i in range(9)]]
    met = [step(0, 6, samples=0, compute=0.0)._replace(began=5.5, wait=0.5)]
    phase = PhaseSteps("localsgd:every=3", True, steps, [met], WaitRule.LOCKSTEP, (0,))
    (lap,) = windows_of(phase)[0].laps
    assert lap.samples == 3 * 60
    assert lap.busy == pytest.approx(3 * 0.27)
    assert lap.wait == 0.5


NUMBERS = st.sampled_from([0.0, 1e-9, 0.3, 2.5, 30.0, -1.0, 1e300])


@settings(max_examples=60)
@given(st.data(), st.sampled_from(["allreduce", "async", "ssp:bound=2", "localsgd:every=4", "?"]))
def test_whatever_the_machines_tell_it_never_fails(data: st.DataObject, strategy: str) -> None:
    rows = [[data.draw(NUMBERS) for _ in range(4)] for _ in range(2)]
    ranks = []
    for rank, (compute, wait, reduce, update) in enumerate(rows):
        made = [
            step(rank, i, compute=compute, wait=wait, reduce=reduce, update=update,
                 samples=data.draw(st.sampled_from([0, 1, 60])))
            for i in range(14)
        ]  # fmt: skip
        ranks.append(RankLog(rank, steps=made))
    found = judge(ranks, strategy, balance=data.draw(st.booleans()))
    if found is not None:
        assert all(option.samples_per_second >= 0.0 for option in found.predicted)


def apart(rank: int, waits: Sequence[float], lost: float | None = None) -> RankLog:
    """A worker of m1, m2, … that waits so long in each of its steps; it hears of m3's end."""
    steps = in_a_row(
        [step(rank, i, compute=0.2, wait=w, reduce=0.0, update=0.0) for i, w in enumerate(waits)]
    )
    clock = 1e6 * rank  # each machine's own
    steps = [one._replace(began=clock + one.began) for one in steps]
    told = WorkerLost(time=0.0, rank=rank, worker=2, machine="m3", address="192.0.2.3")
    return RankLog(
        rank,
        joins=[joined(rank, workers=3, machine=f"m{rank + 1}")],
        steps=steps,
        lost=[] if lost is None else [msgspec.structs.replace(told, time=clock + lost)],
    )


def test_a_machine_that_was_lost_is_told_of_and_never_advised_about() -> None:
    there = [apart(0, [0.0] * 40, lost=3.9), apart(1, [0.0] * 40, lost=3.9), apart(2, [0.0] * 20)]
    found = judge(there, "async", balance=False)
    shares = {name: part.share for name, part in found.machines.items()}
    assert shares == {"m1": pytest.approx(0.5), "m2": pytest.approx(0.5)}
    assert found.samples_per_second == pytest.approx(2 * 300.0)
    assert found.lost == {"m3": pytest.approx(300.0)}
    assert all("m3" not in option.machines for option in found.predicted)
    advice = found.advice or ""
    assert advice.startswith("m3 was lost; both machines that are left help: without m")
    assert as_sentence(found, advice) == advice


def test_waiting_for_a_machine_that_is_gone_does_not_count_any_more() -> None:
    """For half of the steps the others waited for m3, and then nobody did."""
    waits = [0.8] * 20 + [0.0] * 20
    there = [apart(0, waits, lost=20.0), apart(1, waits, lost=20.0), apart(2, [0.0] * 5)]
    found = judge(there, "ssp:bound=2", balance=False)
    assert found.samples_per_second == pytest.approx(2 * 300.0)
    assert found.waiting is not None and found.waiting.share == 0.0
    early = [apart(0, waits[:24], lost=20.0), apart(1, waits[:24], lost=20.0), there[2]]
    assert judge(early, "ssp:bound=2", balance=False) is None


def test_of_one_machine_that_is_left_only_the_loss_is_told() -> None:
    there = [apart(0, [0.0] * 40, lost=3.9), apart(2, [])]
    found = judge(there, "async", balance=False)
    assert found is not None and found.several_hosts
    assert list(found.machines) == ["m1"] and found.lost == {"m3": 0.0}
    assert found.advice == "m3 was lost"
    patient = judge(there, "async", balance=False, settled=True)
    assert patient is not None and patient.advice is None


def test_whoever_was_cut_off_does_not_tell_who_is_gone() -> None:
    """m3 has lost the others just as they have lost it."""
    alone = apart(2, [0.0] * 20)
    alone.lost = [
        WorkerLost(time=1.0, rank=2, worker=w, machine=f"m{w + 1}", address="") for w in (0, 1)
    ]
    there = [apart(0, [0.0] * 40, lost=3.9), apart(1, [0.0] * 40, lost=3.9), alone]
    found = judge(there, "async", balance=False)
    assert found is not None and list(found.machines) == ["m1", "m2"]
    assert list(found.lost) == ["m3"]
