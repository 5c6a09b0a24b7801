"""What a search for the point of a switch says: virtual and real times stay apart."""

from __future__ import annotations

from phalanx.cli.request.tuning_specs import Specs
from phalanx.cli.show.tuning_words import Tried, sentences
from phalanx.plan.switch_search import CONFIRM, Rules, SwitchSearch


def said(specs: Specs, simulated: bool, *, real_value: float = 0.9) -> list[str]:
    """A search whose every point holds; virtual runs take 1 s, real ones a hundred times that."""
    search, tried = SwitchSearch(Rules(0.003, grid=2, confirm=1)), []
    while (trial := search.next()) is not None:
        fresh = trial.stage == CONFIRM
        value = real_value if fresh and trial.point < 2 else 0.9
        seconds = (100.0 if fresh else 1.0) * (1 if trial.point == 2 else 0.5)
        search.take(trial, value)
        tried.append(
            Tried(
                stage=trial.stage,
                strategy=specs.of(trial.point),
                point=specs.share(trial.point),
                seed=trial.seed,
                value=value,
                seconds=seconds,
                epochs=3,
                stopped_early=False,
                run="run",
                simulated=simulated and not fresh,
            )
        )
    return list(sentences(search, specs, tried, "test_accuracy"))


def test_virtual_and_real_times_are_never_averaged() -> None:
    found = said(Specs("allreduce", "async", 2), simulated=True)
    assert found[0].startswith("async is the earliest of 2 points within 0.30 points of allreduce")
    assert found[0].endswith("in 500 ms instead of 1.00 s (virtual time).")
    assert found[1].startswith("Confirmed by 1 fresh seed in real runs: level on average")
    assert found[1].endswith("in 50.0 s instead of 1 min 40 s.")
    assert found[-1] == "Use it: --strategy async"


def test_real_searches_take_all_their_runs_together() -> None:
    found = said(Specs("allreduce", "async", 2), simulated=False)
    assert "virtual" not in " ".join(found)
    assert found[0].endswith("in 25.2 s instead of 50.5 s.")
    assert found[1] == "Confirmed by 1 fresh seed: level on average."


def test_real_runs_may_refute_virtual_time() -> None:
    found = said(Specs("allreduce", "async", 2), simulated=True, real_value=0.5)
    assert found[1].startswith("NOT confirmed: with 1 fresh seed in real runs it is 40.00 points")
    assert "Virtual time misled it, or the first seed was lucky" in found[1]
    assert not any("Use it" in sentence for sentence in found)


def test_the_reverse_switch_is_the_latest() -> None:
    found = said(Specs("async", "allreduce", 2), simulated=True)
    assert found[0].startswith("async is the latest of 2 points within 0.30 points of allreduce")
    assert "an earlier switch is never worse" in found[2]
