"""Curves from blocks of steps: what was put in comes out, whatever the noise."""

from __future__ import annotations

import random

import pytest

from phalanx.train.profile.trial import Block, StepSeconds, costs_of, fit_line

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
