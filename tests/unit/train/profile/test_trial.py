"""Which sizes are tried, in what order, and when it is enough; in seconds that are made up."""

from __future__ import annotations

from phalanx.train.profile.trial import Trial, costs_of


def _run(trial: Trial, fixed: float, each: float, batches: int = 1) -> list[int]:
    """The sizes, until it is over."""
    now, sizes = 100.0, list[int]()
    while not trial.over and len(sizes) < 100_000:
        for _ in range(batches):
            trial.begin(now)
            size = trial.wanted
            sizes.append(size)
            trial.received(size, 0.0001)
            now += 0.0001 + fixed + each * size
        trial.updated(0.0005)
        now += 0.0005
        trial.end(now)
    return sizes


def _trial(seconds: float, batch: int = 64, samples: int = 1000, least: int = 1) -> Trial:
    trial = Trial(seconds)
    trial.plan(batch, samples, least)
    return trial


def test_sizes_take_turns_in_short_blocks() -> None:
    trial = _trial(10.0)
    _run(trial, 0.005, 0.0001)
    assert {block[0].samples for block in trial.blocks} == {8, 16, 32, 64}
    turns = [block[0].samples for block in trial.blocks]
    assert turns[:8] == [64, 32, 16, 8] * 2
    assert len(turns) >= 16
    found = costs_of(trial.found)
    assert abs(found.work.fixed - 0.0051) < 1e-6
    assert abs(found.work.each - 0.0001) < 1e-8
    assert abs(found.update - 0.0005) < 1e-9
    assert trial.batch == 64


def test_sizes_differ_and_suit_the_model() -> None:
    trial = _trial(1.0, batch=3, least=2)
    _run(trial, 0.001, 0.001)
    assert {block[0].samples for block in trial.blocks} == {2, 3}
    alone = _trial(1.0, batch=1)
    _run(alone, 0.001, 0.001)
    assert {block[0].samples for block in alone.blocks} == {1}
    assert len(alone.blocks) > 2


def test_a_batch_is_not_larger_than_the_data() -> None:
    trial = _trial(1.0, batch=512, samples=100)
    assert max(_run(trial, 0.001, 0.00001)) == 100
