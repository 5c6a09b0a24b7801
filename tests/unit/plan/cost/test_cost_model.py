"""Predictions whose closed form is known."""

from __future__ import annotations

import msgspec
import pytest
from made_plans import FAST, MBIT, costs, job, machines, predict, probe

from phalanx.core.errors import InputError
from phalanx.plan.cost.free import HANDLING, PUSH_SECONDS
from phalanx.plan.cost.model import REMOTE_START, CostModel
from phalanx.plan.job import MachineCosts, WorkCurve
from phalanx.plan.prediction import Prediction
from phalanx.pool.machine import HERE, Machine
from phalanx.pool.measured import CollectiveFigures, DeviceRates, MachineRates

PUSH = PUSH_SECONDS + 4e6 * HANDLING
"""Of a model of 4 MB, besides its bytes on the link."""
EQUAL = job({"a": 0.01, "b": 0.01})


def _steps(found: Prediction) -> float:
    return found.step.value


@pytest.mark.parametrize(
    ("speeds", "rate", "strategy", "seconds"),
    [
        ((0.01, 0.01), 4e6, "allreduce", 0.32 + 1.0),  # a second of 4 MB
        ((0.01, 0.04), FAST, "allreduce", 0.64 * 0.8),  # shares by speed
        ((0.01, 0.01), 4e6, "bsp", 0.32 + 2.0),  # a gradient there, parameters back
        ((0.01, 0.01), 4e6, "bsp:servers=2", 0.32 + 1.0),
        ((0.01, 0.01), 4e6, "localsgd:every=8", 0.32 + 1.0 / 8),
        ((0.01, 0.01), 4e3, "async", 2 * (0.32 + PUSH)),  # who is beside the server uses no link
    ],
)
def test_a_step(speeds: tuple[float, float], rate: float, strategy: str, seconds: float) -> None:
    found = predict(
        job(dict(zip("ab", speeds, strict=True))), machines("ab"), probe("ab", rate), strategy
    )
    assert _steps(found) == pytest.approx(seconds, rel=0.01)
    assert found.limit == "the links" or rate != 4e6 or strategy != "allreduce"
    by_speed = [speeds[1] / sum(speeds), speeds[0] / sum(speeds)]
    assert strategy != "allreduce" or found.shares == pytest.approx(by_speed, rel=0.01)


def test_gradients_that_are_ready_early_are_hidden_behind_computing() -> None:
    early = job({"a": 0.01, "b": 0.01}, ready=[(0.5, 0.2), (0.5, 1.0)])
    late, soon = (
        predict(j, machines("ab"), probe("ab", 40e6), "allreduce") for j in (EQUAL, early)
    )
    # 0.1 s of sending: the half that is ready after 0.064 s is away at 0.114 s, of 0.32.
    assert _steps(late) - _steps(soon) == pytest.approx(0.85 * 0.05, rel=0.02)
    encrypted = [
        predict(j, machines("ab", tls=True), probe("ab", 40e6), "allreduce") for j in (EQUAL, early)
    ]
    assert _steps(encrypted[0]) == _steps(encrypted[1]), "nothing is hidden there"


def test_of_three_machines_only_the_way_there_can_be_hidden() -> None:
    three = dict.fromkeys("abc", 0.01)
    early = job(three, ready=[(0.9, 0.0), (0.1, 1.0)])
    late, soon = (
        predict(j, machines("abc"), probe("abc", 100e6), "allreduce:topology=direct")
        for j in (job(three), early)
    )
    whole = 2 * 4e6 * 2 / 3 / 100e6
    assert _steps(late) - _steps(soon) == pytest.approx(0.85 * 0.9 * whole / 2, rel=0.05)


def test_workers_of_this_machine_share_memory_and_need_no_link() -> None:
    here = [Machine(name="here", host=HERE, cores=4, gpus=2)]
    found = predict(job({"here": 0.01}), here, None, "allreduce")
    assert found.workers == 2
    assert _steps(found) == pytest.approx(0.32, rel=0.02)
    assert found.seconds.high < 1.1 * found.seconds.value


def test_without_a_probe_the_interval_is_wide() -> None:
    guessed = predict(EQUAL, machines("ab"), None, "allreduce")
    known = predict(EQUAL, machines("ab"), probe("ab", 125e6), "allreduce")
    assert _steps(guessed) == pytest.approx(_steps(known), rel=0.01)
    widths = [p.seconds.high / p.seconds.value for p in (guessed, known)]
    assert widths[0] > widths[1]


def test_curves_that_were_scaled_or_left_behind_widen_the_interval() -> None:
    def error(**other: object) -> float:
        work = WorkCurve(fixed=0.0, each=0.01, error=0.02, **other)  # type: ignore[arg-type]
        found = predict(
            job({"a": MachineCosts(work=work, update=0.0)}), machines("a"), None, "single"
        )
        return found.step.high / found.step.value

    measured = error(smallest=16, largest=64)
    assert measured == pytest.approx(1.02)
    assert error(smallest=4, largest=8) > measured


def test_measured_collectives_correct_the_formula() -> None:
    bare = probe("ab", 4e6)
    figures = [
        CollectiveFigures("all_reduce.direct", size, 1.2 * size / 4e6, size / 4e6, 5)
        for size in (1_000_000, 16_000_000)
    ]
    corrected = msgspec.structs.replace(bare, collectives=figures)
    found = [predict(EQUAL, machines("ab"), p, "allreduce") for p in (bare, corrected)]
    assert _steps(found[1]) - _steps(found[0]) == pytest.approx(0.2, rel=0.05)
    assert found[1].step.high / found[1].step.value < found[0].step.high / found[0].step.value


def test_a_codec_shrinks_what_is_sent_and_costs_time() -> None:
    slow, fast = probe("ab", 50 * MBIT), probe("ab", FAST)
    plain, coded = (
        predict(EQUAL, machines("ab"), slow, s) for s in ("allreduce", "allreduce+int8")
    )
    assert _steps(plain) - 0.32 == pytest.approx(4e6 / (50 * MBIT), rel=0.02)
    assert _steps(coded) - 0.32 == pytest.approx(0.254 * 4e6 / (50 * MBIT), rel=0.1)
    plain, coded = (
        predict(EQUAL, machines("ab"), fast, s) for s in ("allreduce", "allreduce+int8")
    )
    assert _steps(coded) > _steps(plain)


def test_free_workers_go_at_their_own_pace() -> None:
    uneven = job({"a": 0.01, "b": 0.03})
    found = predict(uneven, machines("ab"), probe("ab", FAST), "async")
    # Chunks of 32: 3.125 and 1.04 a second, less what a push costs.
    fast, slow = (PUSH + seconds for seconds in (0.32, 0.96))
    assert found.samples_per_second.value == pytest.approx(32 / fast + 32 / slow, rel=0.01)
    bound = predict(uneven, machines("ab"), probe("ab", FAST), "ssp:bound=3")
    assert bound.samples_per_second.value == pytest.approx(100 * 4 / 3, rel=0.01)


def test_the_link_of_a_server_can_be_full() -> None:
    four = job(dict.fromkeys("abcd", 1e-5))
    model = CostModel(four, probe("abcd", 4e6))
    found = model.predict(machines("abcd"), "ssp:bound=3:servers=1")
    # Three of four push 4 MB each over one link of 4 MB a second; alike, they also wait together
    # for what comes back. At best both directions would be busy all the time.
    assert found.limit == "the links"
    assert found.step.value == pytest.approx(6.0, rel=0.01)
    floor = model.predict(machines("abcd"), "ssp:bound=3:servers=1", exact=False)
    assert floor.step.value == pytest.approx(3.0, rel=0.01)


def test_the_total_has_start_evaluation_and_checkpoints() -> None:
    one = MachineCosts(work=costs(0.01).work, update=0.0, start=5.0, evaluate=2.0)
    whole = job({"a": one}, epochs=3)
    found = CostModel(whole, None, checkpoints=0).predict(machines("a"), "single")
    assert found.seconds.value == pytest.approx(3 * 64 + 5 + REMOTE_START + 3 * 2)


def test_jitter_makes_lockstep_wait_for_the_latest() -> None:
    def step(variation: float, strategy: str) -> float:
        work = WorkCurve(fixed=0.0, each=0.01, variation=variation, largest=64)
        shaky = MachineCosts(work=work, update=0.0)
        ground = job(dict.fromkeys("abcd", shaky))
        return predict(ground, machines("abcd"), probe("abcd", FAST), strategy).step.value

    assert step(0.1, "allreduce") / step(0.0, "allreduce") == pytest.approx(1.103, abs=0.01)
    assert step(0.1, "localsgd:every=16") < step(0.1, "allreduce")


def test_energy_is_measured_or_from_the_blueprint_or_an_estimate() -> None:
    rates = MachineRates("a", 4, None, [], [DeviceRates("CPU", 1, 1.0, None, None, watts=50.0)])
    bare = probe("a", FAST)
    known = msgspec.structs.replace(bare, rates=[rates])
    work = job({"a": 0.01})
    found = predict(work, machines("a"), known, "single")
    assert found.energy_source == "measured"
    assert found.joules.value == pytest.approx(50 * (64 + REMOTE_START))
    assert predict(work, machines("a", watts=9.0), None, "single").energy_source == "blueprint"
    assert predict(work, machines("a"), None, "single").energy_source == "estimate"


def test_price_is_for_the_whole_run() -> None:
    found = predict(job({"a": 0.01}), machines("a", price_per_hour=36.0), None, "single")
    assert found.price.value == pytest.approx(0.01 * (64 + REMOTE_START))


def test_learnt_factors_are_applied() -> None:
    model = CostModel(job({"a": 0.01}), None, factors={("a", "single"): 1.1})
    assert model.predict(machines("a"), "single").step.value == pytest.approx(0.704)


def test_a_machine_without_a_curve_is_refused() -> None:
    with pytest.raises(InputError, match="not measured on b"):
        predict(job({"a": 0.01}), machines("ab"), None, "allreduce")


@pytest.mark.parametrize("strategy", ["allreduce", "bsp", "async"])
def test_messages_take_a_lone_core_from_computing(strategy: str) -> None:
    """As long as the probe says that the processor is busy with each byte."""
    work = job(dict.fromkeys("ab", 1e-3), ready=[(0.5, 0.5), (0.5, 1.0)])
    two, one = (
        machines("ab"),
        [machine.model_copy(update={"cores": 1}) for machine in machines("ab")],
    )

    def seconds(pool: list[Machine], handling: float) -> float:
        found = probe("ab", 1000 * MBIT)
        links = [msgspec.structs.replace(link, handling=handling) for link in found.links]
        return predict(work, pool, msgspec.structs.replace(found, links=links), strategy).step.value

    assert seconds(two, 5e-9) == seconds(two, 0.0) == seconds(one, 0.0)
    little, much = seconds(one, 2e-9), seconds(one, 5e-9)
    assert seconds(one, 0.0) < little < much
    assert much - seconds(one, 0.0) <= 5e-9 * 4 * work.gradient_bytes
