"""The words agree with the numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_runs import write_run, write_study

from phalanx.core import words
from phalanx.observe.summary.summary import summarise
from phalanx.report.comparison import decide, worth_distributing
from phalanx.report.load import Spread, load_study
from phalanx.report.noise import Difference, judge_quality, judge_times
from phalanx.report.quality import Quality
from phalanx.report.ranking import Competitor
from phalanx.report.study_verdict import verdict_on

ACCURACY = Quality("test_accuracy")
LOSS = Quality("test_loss")
NAMES = ("single", "allreduce", "async", "switch:at=0.5")


def row(name: str, seconds: list[float], quality: list[float] | None = None) -> Competitor:
    score = Spread(tuple(quality)) if quality else None
    return Competitor(name, name, 128, Spread(tuple(seconds)), score)


times = st.lists(st.floats(0.01, 10_000), min_size=1, max_size=4)
scores = st.lists(st.floats(0.01, 0.999), min_size=1, max_size=4)
fields = st.lists(st.tuples(times, scores), min_size=2, max_size=4).map(
    lambda drawn: [row(name, t, q) for name, (t, q) in zip(NAMES, drawn, strict=False)]
)


@given(fields)
def test_who_is_called_fastest_has_the_least_time(rows: list[Competitor]) -> None:
    verdict = decide(rows, ACCURACY)
    least = min(r.seconds.middle for r in rows)
    assert verdict.fastest[0] in {r.label for r in rows if r.seconds.middle == least}
    if "fastest" in verdict.sentence:
        assert verdict.sentence.startswith(verdict.fastest[0])
        assert words.seconds(least) in verdict.sentence
        assert len(verdict.fastest) < len(rows)
    else:
        assert "noise" in verdict.sentence
        assert len(verdict.fastest) == len(rows)


@given(fields)
def test_front_runners_are_exactly_those_that_noise_cannot_tell_apart(
    rows: list[Competitor],
) -> None:
    verdict = decide(rows, ACCURACY)
    by_label = {r.label: r for r in rows}
    first = by_label[verdict.fastest[0]]
    for other in rows:
        if other is first:
            continue
        alike = judge_times(first.seconds, other.seconds) is Difference.NOISE
        assert alike == (other.label in verdict.fastest)


@given(fields)
def test_who_is_best_has_the_highest_accuracy(rows: list[Competitor]) -> None:
    verdict = decide(rows, ACCURACY)
    most = max(r.quality.middle for r in rows if r.quality)
    first = next(r for r in rows if r.label == verdict.best[0])
    assert first.quality and first.quality.middle == most
    if ", but its test accuracy" in verdict.sentence:
        assert verdict.fastest[0] not in verdict.best
        assert words.share(most) in verdict.sentence
        assert "less than that of" in verdict.sentence


@given(fields)
def test_certainty_is_only_claimed_where_it_was_earned(rows: list[Competitor]) -> None:
    verdict = decide(rows, ACCURACY)
    if verdict.time is Difference.TENTATIVE:
        assert " look" in verdict.sentence
    counts = [len(r.seconds.values) for r in rows]
    once = "Each ran once" if max(counts) == 1 else "Some ran once"
    assert (min(counts) == 1) == any(once in remark for remark in verdict.remarks)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ([10.0], [10.4], Difference.NOISE),
        ([10.0], [12.0], Difference.TENTATIVE),
        ([10.0], [20.0], Difference.CLEAR),
        ([10.0, 10.1, 10.2], [10.5, 10.6, 10.7], Difference.CLEAR),
        ([10.0, 11.0, 12.0], [11.9, 13.0, 14.0], Difference.NOISE),  # the ranges overlap
        ([10.0, 10.0, 12.0], [12.1, 12.1, 14.2], Difference.NOISE),  # closer than they scatter
        ([10.0, 10.1], [20.0], Difference.CLEAR),  # one of them ran once
    ],
)
def test_what_counts_as_noise(a: list[float], b: list[float], expected: Difference) -> None:
    assert judge_times(Spread(tuple(a)), Spread(tuple(b))) is expected


def test_losses_are_judged_relatively_and_lower_is_better() -> None:
    rows = [row("allreduce", [10.0], [0.1]), row("async", [4.0], [0.5])]
    verdict = decide(rows, LOSS)
    assert verdict.best == ("allreduce",)
    assert "0.4000 higher than that of allreduce" in verdict.sentence
    assert judge_quality(Spread((0.100,)), Spread((0.101,)), LOSS) is Difference.NOISE


def test_the_sentence_of_a_clear_winner() -> None:
    rows = [row("allreduce", [10.0], [0.95]), row("async", [6.0], [0.98])]
    assert decide(rows, ACCURACY).sentence == (
        "async was fastest: 40 % less time than allreduce (6.00 s against 10.0 s), and its test "
        "accuracy is the best: 98.00 %, 3.00 points more than allreduce."
    )


def test_the_sentence_when_all_is_noise() -> None:
    rows = [row("allreduce", [10.0], [0.97]), row("async", [10.1], [0.971])]
    assert decide(rows, ACCURACY).sentence == (
        "The difference is noise: allreduce and async all took 10.0 to 10.1 s and reached "
        "97.00 to 97.10 % test accuracy."
    )


@pytest.mark.parametrize(
    ("single", "many", "expected"),
    [
        (10.0, 4.0, "Distributing paid off: async took 60 % less time"),
        (10.0, 8.0, "Distributing seems to have paid off: async took 20 % less"),
        (10.0, 10.1, "Distributing made no measurable difference"),
        (10.0, 11.0, "Distributing does not seem to have paid off here: async"),
        (
            10.0,
            25.0,
            "Distributing did not pay off here: async, the fastest of the distributed runs",
        ),
    ],
)
def test_whether_it_was_worth_it(single: float, many: float, expected: str) -> None:
    told = worth_distributing([row("single", [single]), row("async", [many])], ACCURACY)
    assert told is not None and told.startswith(expected)


def test_speed_bought_with_accuracy_is_not_called_worth_it() -> None:
    single, poor = row("single", [10.0], [0.95]), row("async", [2.0], [0.80])
    told = worth_distributing([single, poor], ACCURACY)
    assert "at a price" in told and "15.00 points less test accuracy" in told
    good = row("allreduce", [5.0], [0.95])
    told = worth_distributing([single, poor, good], ACCURACY)
    assert told is not None and told.startswith("Distributing paid off: allreduce took 50 % less")


def test_runs_that_did_not_finish_cannot_win(tmp_path: Path) -> None:
    for name, status, compute in (
        ("a", "done", 0.010), ("b", "done", 0.030), ("c", "failed", 0.001),
    ):  # fmt: skip
        strategy = {"a": "allreduce", "b": "single", "c": "async"}[name]
        workers = 1 if strategy == "single" else 2
        write_run(
            tmp_path, name, strategy=strategy, workers=workers, status=status, compute=compute
        )
    study = write_study(
        tmp_path, "study", ["a", "b", "c", "gone"], failures={"c": "rank 1 was killed by SIGKILL"}
    )
    verdict = verdict_on(load_study(study))
    assert verdict.fastest == ("allreduce",)
    told = " ".join(verdict.remarks)
    assert "2 of 4" in told and "async (failed: rank 1 was killed by SIGKILL)" in told
    assert "gone" in told


def test_unequal_work_is_said(tmp_path: Path) -> None:
    write_run(tmp_path, "long", epochs=4)
    write_run(tmp_path, "short", epochs=2, strategy="async")
    told = " ".join(verdict_on(load_study(write_study(tmp_path, "s", ["long", "short"]))).remarks)
    assert "unequal length" in told


def test_one_run_is_told_as_it_ended(tmp_path: Path) -> None:
    done = write_run(tmp_path, "done")
    assert verdict_on(load_study(done)).sentence.startswith(
        "allreduce with 2 workers trained 3 epochs in "
    )
    stopped = write_run(tmp_path, "stopped", status="stopped")
    assert "was stopped after 3 epochs" in verdict_on(load_study(stopped)).sentence
    empty = write_run(tmp_path, "empty", epochs=0, status=None)
    assert summarise(empty).epochs == 0
    assert "was lost" in verdict_on(load_study(empty)).sentence


def test_a_speed_up_above_the_number_of_workers_is_questioned_and_not_praised() -> None:
    alone = row("single", [9.0], [0.9])
    two = replace(row("allreduce", [1.0], [0.9]), workers=2)
    verdict = decide([alone, two], ACCURACY)
    assert verdict.time is Difference.TENTATIVE and "looks fastest" in verdict.sentence
    doubt = verdict.remarks[0]
    assert doubt.startswith("Doubtful: allreduce was 9.0 times as fast as single")
    assert "more than 2 workers can be" in doubt and "--repeat 3" in doubt
    assert not any("paid" in remark for remark in verdict.remarks)
    plausible = decide([alone, replace(two, seconds=Spread((4.6,)))], ACCURACY)
    assert plausible.remarks[0].startswith("Distributing paid off")


def test_unlike_numbers_of_threads_are_said() -> None:
    alone = replace(row("single", [9.0]), threads=1)
    two = replace(row("allreduce", [5.0]), workers=2, threads=2)
    told = " ".join(decide([alone, two], ACCURACY).remarks)
    assert "different numbers of threads in total: single with 1 and allreduce with 2" in told
    same = " ".join(decide([replace(alone, threads=2), two], ACCURACY).remarks)
    assert "threads" not in same
