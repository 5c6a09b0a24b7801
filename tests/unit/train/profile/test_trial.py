"""Which sizes are tried, which curve comes of it, and when a gradient is ready."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
from torch import nn

from phalanx.train.profile.profiling import PIECES, Readiness
from phalanx.train.profile.trial import Block, StepSeconds, Trial, costs_of, fit_line


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


FIXED, EACH, UPDATE, INPUT = 0.004, 0.0002, 0.001, 0.00002


def _blocks(noise: float, seed: int = 1, rounds: int = 6) -> list[Block]:
    draw = random.Random(seed)
    found = []
    for number in range(rounds):
        for samples in (16, 32, 64, 128):
            block: Block = []
            for _ in range(8):
                off = 1.0 + noise * draw.uniform(-1.0, 1.0)
                seconds = (FIXED + EACH * samples) * off
                block.append(StepSeconds(samples, INPUT * samples, seconds, UPDATE))
            if number == 2:  # another program disturbs a whole block
                block = [s._replace(compute=3 * s.compute) for s in block]
            found.append(block)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_the_curve_is_found_in_noise(seed: int) -> None:
    found = costs_of(_blocks(0.2, seed))
    assert found.work.fixed == pytest.approx(FIXED, rel=0.1)
    assert found.work.each == pytest.approx(EACH, rel=0.08)
    for samples in (16, 100, 128):
        assert found.work.seconds(samples) == pytest.approx(FIXED + EACH * samples, rel=0.06)
    assert found.update == pytest.approx(UPDATE)
    assert found.input == pytest.approx(INPUT)
    assert (found.work.smallest, found.work.largest) == (16, 128)
    assert not found.work.extrapolated


def test_noise_shows_as_variation_and_error() -> None:
    quiet, loud = costs_of(_blocks(0.01)[8:9] * 2).work, costs_of(_blocks(0.4)).work
    assert quiet.variation < 0.02 < 0.15 < loud.variation
    assert quiet.error <= loud.error <= 0.5


def test_neither_part_is_below_zero() -> None:
    assert fit_line({8: 1.0, 16: 0.9, 32: 0.8})[1] == 0.0
    fixed, each = fit_line({8: 0.5, 16: 2.0, 32: 6.0})
    assert fixed == 0.0
    assert each > 0.0


def test_of_one_size_all_is_each_samples() -> None:
    assert fit_line({32: 0.64}) == (0.0, pytest.approx(0.02))
    assert costs_of([[StepSeconds(32, 0.0, 0.64, 0.0)]]).work.error >= 0.25


def test_reading_that_costs_nothing_is_no_division_by_zero() -> None:
    assert fit_line({8: 0.0, 16: 0.0}) == (0.0, 0.0)


def test_the_last_layers_are_ready_first() -> None:
    model = nn.Sequential(nn.Linear(4, 40), nn.ReLU(), nn.Linear(40, 2))
    ticks = itertools.count()
    readiness = Readiness(list(model.parameters()), lambda: float(next(ticks)))
    readiness.begin()
    model(torch.ones(3, 4)).sum().backward()
    readiness.end(float(next(ticks)))
    shares, times = zip(*readiness.pieces, strict=True)
    assert abs(sum(shares) - 1.0) < 1e-9
    assert list(times) == sorted(times)
    assert times[-1] <= 1.0
    assert abs(shares[0] - 82 / 282) < 0.3
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def test_many_parameters_are_few_pieces_and_unused_ones_come_last() -> None:
    layers = [nn.Linear(5, 5) for _ in range(60)]
    unused = nn.Linear(5, 5)
    ticks = itertools.count()
    parameters = [p for layer in (*layers, unused) for p in layer.parameters()]
    readiness = Readiness(parameters, lambda: float(next(ticks)))
    readiness.begin()
    nn.Sequential(*layers)(torch.ones(2, 5)).sum().backward()
    readiness.end(float(next(ticks)))
    assert len(readiness.pieces) == PIECES
    assert readiness.pieces[-1][1] == 1.0
    assert abs(sum(share for share, _ in readiness.pieces) - 1.0) < 1e-9


def test_steps_that_are_too_long_for_all_sizes_end_all_the_same() -> None:
    trial = _trial(5.0)
    sizes = _run(trial, 2.0, 0.0)
    assert len(sizes) <= 4
    assert trial.found


def test_what_is_in_hand_when_the_script_leaves_its_loop_is_no_step() -> None:
    trial = _trial(5.0)
    trial.begin(0.0)
    trial.received(8, 0.1)
    trial.updated(0.1)
    trial.drop()
    trial.end(50.0)
    assert not trial.found
