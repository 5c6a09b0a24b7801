"""Changes while a run trains are told in a few lines."""

from __future__ import annotations

from phalanx.cli.show.progress import MOST_SHARES, MOST_SWITCHES, ChangeLines
from phalanx.cli.show.result_lines import describe
from phalanx.observe.events.event_types import Balanced, SamplesSettled, Switched, WorkerLost
from phalanx.observe.summary.summary import Summary


def balanced(*shares: float) -> Balanced:
    return Balanced(time=1.0, rank=0, epoch=0, shares=list(shares))


def switched(at: float) -> Switched:
    return Switched(
        time=1.0, rank=0, epoch=0, at_epoch=at, before="allreduce", after="async", pause=0.002
    )


def test_each_change_of_shares_once() -> None:
    changes = ChangeLines()
    assert changes.line(balanced(0.8, 0.2)) == "shares 80 : 20 (by measured speed)"
    assert changes.line(balanced(0.801, 0.199)) is None
    assert changes.line(balanced(0.7, 0.3)) == "shares 70 : 30 (by measured speed)"


def test_only_the_first_few_are_told() -> None:
    changes = ChangeLines()
    told = [changes.line(balanced(i / 100, 1 - i / 100)) for i in range(1, 40)]
    lines = [line for line in told if line]
    assert len(lines) == MOST_SHARES + 1 and lines[-1] == "further shares are in the report"
    told = [changes.line(switched(i)) for i in range(40)]
    lines = [line for line in told if line]
    assert len(lines) == MOST_SWITCHES + 1
    assert lines[0] == "switched from allreduce to async at epoch 0.00, pause 2 ms"


def test_what_a_lost_worker_had_is_told() -> None:
    event = SamplesSettled(
        time=1.0, rank=0, worker=2, epoch=1, trained=96, of_epoch=32, back=43, lost=0
    )
    assert ChangeLines().line(event) == "worker 2 is lost: the others take over 43 of its samples"
    event = SamplesSettled(
        time=1.0, rank=0, worker=2, epoch=1, trained=96, of_epoch=32, back=0, lost=16
    )
    assert "16 of an incomplete update cannot be trained again" in ChangeLines().line(event)


def test_the_last_line_says_that_it_was_emulated() -> None:
    summary = Summary(run="r", status="done", strategy="async", emulated="speeds 1, 0.25")
    assert "emulated (speeds 1, 0.25)" in describe(summary)
    summary.emulated = None
    assert "emulated" not in describe(summary)


def test_what_is_taken_back_is_said() -> None:
    changes = ChangeLines()
    tried = Balanced(
        time=1.0, rank=0, epoch=0, shares=[0.5, 0.5], refused=[0.88, 0.12],
        rate_before=7984.0, rate_after=2359.0,
    )  # fmt: skip
    assert changes.line(tried) == (
        "shares 88 : 12 tried and reverted: not clearly faster (2,359 samples/s instead of 7,984)"
    )
    told = [changes.line(tried) for _ in range(40)]
    assert len([line for line in told if line]) == MOST_SHARES


def test_a_lost_worker_is_told_once_and_not_by_itself() -> None:
    def lost(rank: int, worker: int) -> WorkerLost:
        return WorkerLost(time=1.0, rank=rank, worker=worker, machine=f"m{worker}", address="")

    changes = ChangeLines()
    told = [changes.line(lost(*pair)) for pair in ((0, 2), (1, 2), (2, 0), (2, 1))]
    assert told == ["worker 0 goes on without worker 2 on m2", None, None, None]
