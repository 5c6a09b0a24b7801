"""A sample is changed in the same way, whoever reads it and in whatever batch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from phalanx.core.errors import InputError
from phalanx.data.augment import Draws, crop_and_flip, mix

IMAGES = torch.arange(1, 40 * 2 * 6 * 5 + 1, dtype=torch.float32).view(40, 2, 6, 5)


def augmented(samples: list[int], seed: int = 3, epoch: int = 0, pad: int = 2) -> Tensor:
    ids = torch.tensor(samples)
    return crop_and_flip(pad)(IMAGES[ids], Draws(seed, epoch, ids))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 39), min_size=1, max_size=12), st.integers(0, 2**40))
def test_the_batch_does_not_matter(samples: list[int], seed: int) -> None:
    together = augmented(samples, seed=seed)
    alone = torch.cat([augmented([sample], seed=seed) for sample in samples])
    assert torch.equal(together, alone)


def test_epochs_seeds_and_samples_differ() -> None:
    samples = list(range(40))
    first = augmented(samples)
    assert torch.equal(first, augmented(samples))
    assert not torch.equal(first, augmented(samples, epoch=1))
    assert not torch.equal(first, augmented(samples, seed=4))


def by_hand(image: Tensor, top: int, left: int, mirrored: bool, pad: int) -> Tensor:
    height, width = image.shape[1:]
    result = torch.zeros_like(image)
    for row in range(height):
        for column in range(width):
            y, x = row + top - pad, column + left - pad
            if 0 <= y < height and 0 <= x < width:
                result[:, row, column] = image[:, y, x]
    return result.flip(2) if mirrored else result


def test_it_is_a_padded_crop_mirrored_half_of_the_time() -> None:
    ids = torch.arange(40)
    draws = Draws(3, 0, ids)
    top, left = draws.below(5, stream=0), draws.below(5, stream=1)
    mirrored = draws.uniform(stream=2) < 0.5
    expected = [
        by_hand(IMAGES[i], int(top[i]), int(left[i]), bool(mirrored[i]), pad=2) for i in range(40)
    ]
    assert torch.equal(augmented(list(range(40))), torch.stack(expected))


def test_draws_are_uniform_and_streams_independent() -> None:
    draws = Draws(0, 0, torch.arange(20_000))
    uniform = [draws.uniform(stream) for stream in range(3)]
    for values in uniform:
        assert float(values.min()) >= 0 and float(values.max()) < 1
        counts = torch.histc(values, 10, 0, 1)
        assert float((counts - 2000).abs().max()) < 250  # about six standard deviations
    together = torch.corrcoef(torch.stack(uniform)) - torch.eye(3)
    assert float(together.abs().max()) < 0.04
    assert set(draws.below(9, stream=5).tolist()) == set(range(9))


def test_mix_is_a_bijection_and_never_changes() -> None:
    words = np.arange(10_000, dtype=np.uint64)
    assert len(np.unique(mix(words))) == 10_000
    # Published first outputs of SplitMix64 from seed 0 are mix(n × golden ratio).
    assert int(mix(np.array([0x9E3779B97F4A7C15], np.uint64))[0]) == 0xE220A8397B1DCDAF


def test_wrong_use_is_refused() -> None:
    with pytest.raises(InputError, match="needs images"):
        crop_and_flip()(torch.zeros(4, 10), Draws(0, 0, torch.arange(4)))
    with pytest.raises(InputError, match="invalid pad=-1"):
        crop_and_flip(-1)
