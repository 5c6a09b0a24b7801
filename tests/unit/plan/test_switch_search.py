"""The search for the point of a switch: pure, so every outcome can be tried."""

from __future__ import annotations

import math
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.settings import smaller_is_better
from phalanx.plan.switch_search import (
    BASELINE,
    CONFIRM,
    SEARCH,
    Rules,
    SwitchSearch,
    SwitchTrial,
    is_lost,
)

BASE, TOLERANCE = 0.9, 0.003


def drive(
    rules: Rules, threshold: int, *, lost: bool = False, unlucky: bool = False
) -> SwitchSearch:
    """Feed a search with runs that hold exactly from ``threshold`` on; what it asked for is kept
    in ``asked``."""
    search = SwitchSearch(rules)
    asked: list[SwitchTrial] = []
    sign = -1 if rules.smaller_is_better else 1
    while (trial := search.next()) is not None:
        assert trial not in asked, "no run is asked for twice"
        asked.append(trial)
        bad = trial.point < threshold or (unlucky and trial.stage == CONFIRM)
        wobble = 0.001 * trial.seed  # the seeds differ more from each other than the tolerance
        value = BASE + wobble
        if trial.point < rules.grid and bad:
            value -= sign * 0.01
        search.take(trial, None if lost and bad and trial.point < rules.grid else value)
    search.asked = asked  # type: ignore[attr-defined]
    return search


def asked_of(search: SwitchSearch) -> list[SwitchTrial]:
    found: list[SwitchTrial] = search.asked  # type: ignore[attr-defined]
    return found


@given(
    st.integers(2, 200).flatmap(lambda grid: st.tuples(st.just(grid), st.integers(0, grid))),
    st.integers(1, 3),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
)
def test_every_monotone_threshold_is_found_with_few_runs(
    case: tuple[int, int], seeds: int, confirm: int, lost: bool, smaller: bool
) -> None:
    grid, threshold = case
    rules = Rules(TOLERANCE, grid, seeds, confirm, smaller)
    search = drive(rules, threshold, lost=lost)

    verdict = search.verdict()
    assert verdict.point == threshold
    candidates = {trial.point for trial in asked_of(search) if trial.stage == SEARCH}
    assert len(candidates) <= rules.most_candidates <= math.ceil(math.log2(grid)) + 1
    assert len(asked_of(search)) <= rules.most_runs
    if threshold < grid and confirm:
        assert verdict.confirmed
        assert verdict.confirmed_behind is not None
        assert abs(verdict.confirmed_behind) < 1e-9
    else:
        assert verdict.confirmed is None


def test_a_grid_of_ten_takes_less_than_half_of_its_runs_to_search() -> None:
    for threshold in range(11):
        search = drive(Rules(TOLERANCE, confirm=0), threshold)
        assert 2 * len(asked_of(search)) < search.rules.runs_of_the_grid == 11


def test_the_stages_come_in_order_with_their_own_seeds() -> None:
    search = drive(Rules(TOLERANCE, grid=10, seeds=2, confirm=2), 3)

    stages = [trial.stage for trial in asked_of(search)]
    assert stages == sorted(stages, key=[BASELINE, SEARCH, CONFIRM].index)
    seeds = {stage: {t.seed for t in asked_of(search) if t.stage == stage} for stage in stages}
    assert seeds == {BASELINE: {0, 1}, SEARCH: {0, 1}, CONFIRM: {2, 3}}
    confirmed = Counter(t.point for t in asked_of(search) if t.stage == CONFIRM)
    assert confirmed == {10: 2, 3: 2}


def test_a_lost_run_spares_the_other_seeds_of_its_point() -> None:
    whole = drive(Rules(TOLERANCE, seeds=3, confirm=0), 5)
    spared = drive(Rules(TOLERANCE, seeds=3, confirm=0), 5, lost=True)

    runs = Counter(t.point for t in asked_of(spared) if t.stage == SEARCH)
    assert runs == {5: 3, 2: 1, 4: 1}
    assert len(asked_of(whole)) > len(asked_of(spared))
    assert whole.verdict().point == spared.verdict().point == 5


def test_fresh_seeds_can_refute_what_was_found() -> None:
    for lost in (False, True):
        verdict = drive(Rules(TOLERANCE), 4, unlucky=True, lost=lost).verdict()
        assert verdict.point == 4
        assert verdict.confirmed is False
        assert (verdict.confirmed_behind is None) is lost


def test_there_is_no_verdict_before_the_end() -> None:
    search = SwitchSearch(Rules(TOLERANCE))
    for expected in (BASELINE, SEARCH):
        assert search.verdict().point is None
        trial = search.next()
        assert trial is not None
        assert trial.stage == expected
        search.take(trial, BASE)
    assert search.verdict().point is None


def test_exactly_the_tolerance_still_holds() -> None:
    search = SwitchSearch(Rules(0.003, grid=2, confirm=0))
    while (trial := search.next()) is not None:
        search.take(trial, {2: 0.9003, 1: 0.8973, 0: 0.8972}[trial.point])
    assert search.verdict().point == 1


EPOCHS = 9
RISING = {epoch: 0.5 + 0.04 * epoch for epoch in range(EPOCHS)}


def behind_by(amount: float, epochs: int) -> dict[int, float | None]:
    return {epoch: RISING[epoch] - amount for epoch in range(epochs)}


def test_only_the_last_third_can_be_lost_and_not_its_end() -> None:
    rules = Rules(0.003)
    lost = [n for n in range(EPOCHS + 1) if is_lost(behind_by(0.2, n), [RISING], EPOCHS, rules)]
    assert lost == [7, 8], "of nine epochs; after the ninth there is nothing to save"


def test_three_tolerances_or_the_spread_whichever_is_more() -> None:
    flat = dict.fromkeys(range(EPOCHS), 0.9)

    def lost(amount: float, *baselines: dict[int, float], tolerance: float = 0.003) -> bool:
        values: dict[int, float | None] = dict.fromkeys(range(8), 0.9 - amount)
        return is_lost(values, list(baselines), EPOCHS, Rules(tolerance))

    assert lost(0.010, flat)
    assert not lost(0.008, flat)
    assert not lost(0.010, flat, tolerance=0.004)
    high, low = dict.fromkeys(flat, 0.92), dict.fromkeys(flat, 0.88)
    assert not lost(0.03, high, low), "two baselines differ by 0.04"
    assert lost(0.05, high, low)
    wobbling = {epoch: 0.9 + 0.02 * (epoch % 2) for epoch in flat}
    assert not lost(-0.005, wobbling), "0.015 behind a baseline that jumps by 0.02"
    assert lost(0.005, wobbling)


def test_a_value_that_is_no_number_is_lost_at_once() -> None:
    rules = Rules(0.003)
    assert is_lost({0: None}, [RISING], EPOCHS, rules)
    assert is_lost({0: math.nan}, [RISING], EPOCHS, rules)
    assert not is_lost({}, [RISING], EPOCHS, rules)
    assert not is_lost({0: None}, [], 1, rules), "the only epoch is over"


@given(st.floats(0, 1), st.integers(1, 20), st.floats(0, 0.1))
def test_a_run_that_keeps_up_is_never_lost(value: float, epochs: int, tolerance: float) -> None:
    same = dict.fromkeys(range(epochs), value)
    for known in range(epochs + 1):
        seen: dict[int, float | None] = {epoch: same[epoch] for epoch in range(known)}
        assert not is_lost(seen, [same], epochs, Rules(tolerance))


def test_losses_are_better_when_smaller() -> None:
    assert smaller_is_better("test_loss")
    assert smaller_is_better("Perplexity")
    assert not smaller_is_better("test_accuracy")
    rules = Rules(0.01, smaller_is_better=True)
    base = dict.fromkeys(range(EPOCHS), 0.5)
    assert is_lost({7: 0.6}, [base], EPOCHS, rules)
    assert not is_lost({7: 0.4}, [base], EPOCHS, rules)


def test_a_baseline_that_stopped_early_is_no_hindrance() -> None:
    whole = dict.fromkeys(range(EPOCHS), 0.9)
    assert is_lost({7: 0.5}, [whole, {0: 0.9, 1: 0.9}], EPOCHS, Rules(TOLERANCE))
