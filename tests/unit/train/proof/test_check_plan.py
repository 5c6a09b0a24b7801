"""When a training is checked against one process: alike everywhere, and less and less often."""

from __future__ import annotations

from phalanx.train.proof.checks import LATER, CheckPlan
from phalanx.train.proof.proof import ENDED, HOLDS, NOISE, WEIGHTS, Verdict


def _begins(first: int, seed: int, steps: int = 20_000) -> dict[int, int]:
    plan = CheckPlan(first, seed)
    return {step: length for step in range(steps) if (length := plan.length(step))}


def test_checks_come_ever_further_apart_and_take_little() -> None:
    found = _begins(12, 3)
    assert list(found.values()) == [12, *[LATER] * (len(found) - 1)]
    assert 8 < len(found) < 25 and sum(found.values()) < 0.005 * 20_000
    gaps = [b - a for a, b in zip(list(found), list(found)[1:], strict=False)]
    assert min(gaps) > 12  # one check ends before the next begins
    assert gaps[-1] > 10 * gaps[0]


def test_the_seed_decides_alike_on_all_workers() -> None:
    assert _begins(12, 5) == _begins(12, 5)
    assert _begins(12, 5) != _begins(12, 6)
    assert _begins(0, 5) == {}
    assert set(_begins(2, 5).values()) == {2}


def test_a_resumed_training_goes_on_with_the_same_plan() -> None:
    wanted = {step: length for step, length in _begins(12, 7).items() if step >= 100}
    plan = CheckPlan(12, 7)
    assert plan.length(0) == 12
    found = {step: length for step in range(100, 20_000) if (length := plan.length(step))}
    assert found == wanted


def test_what_is_said_names_the_step_of_the_training() -> None:
    said = Verdict(WEIGHTS, 2, 0.25, 1, 40).words(["first", "second"])
    assert said == (
        "step 43 differs from that of one process: the weights by 25.0% of their movement, "
        "second most"
    )
    assert "before step 11, and" in Verdict(ENDED, 10, 0.0).words([])
    assert Verdict(NOISE, 0, 0.0).words([]).startswith("not checked against one process")
    assert Verdict(NOISE, 3, 0.0).holds and Verdict(HOLDS, 12, 1e-9).holds
