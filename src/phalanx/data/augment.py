"""Augmentation with random numbers that depend on the sample, not on the worker that reads it.

Every draw is a hash of (seed, epoch, sample, stream), so that a sample is changed in the same way
in any batch, on any worker, under any strategy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from phalanx.core.errors import InputError
from phalanx.data.structure import sent, with_first

Words = npt.NDArray[np.uint64]
_MASK = (1 << 64) - 1
_STEP = 0x9E3779B97F4A7C15


def mix(words: Words) -> Words:
    """A bijection that scatters 64-bit words: the finaliser of SplitMix64 (Steele, 2014)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def hashed(words: Words, *keys: int) -> Words:
    """A hash of each of ``words`` with all ``keys``."""
    for key in keys:
        words = mix(words + np.uint64((key + 1) * _STEP & _MASK))
    return words


@dataclass(frozen=True)
class Draws:
    """Random numbers for the samples of a batch; ``stream`` tells one decision from another."""

    seed: int
    epoch: int
    samples: Tensor

    def words(self, stream: int) -> Words:
        """64 random bits for each sample."""
        ids = self.samples.cpu().numpy().astype(np.uint64)
        return hashed(ids, self.seed, self.epoch, stream)

    def uniform(self, stream: int) -> Tensor:
        """A float32 in [0, 1) for each sample."""
        bits = self.words(stream) >> np.uint64(40)
        return torch.from_numpy(bits.astype(np.float32) / np.float32(1 << 24))

    def below(self, limit: int, stream: int) -> Tensor:
        """An int64 in [0, limit) for each sample."""
        return torch.from_numpy((self.words(stream) % np.uint64(limit)).astype(np.int64))


class Augment(Protocol):
    """Changes a batch of inputs with the random numbers of its samples."""

    def __call__(self, x: Tensor, draws: Draws) -> Tensor: ...


def augmented(batch: Any, augment: Augment, draws: Draws, instead: str) -> Any:
    """``batch`` with its first part changed; without one, ``instead`` is called."""
    changed = with_first(batch, lambda images: augment(images, draws))
    if changed is None:
        raise InputError(
            f"augment cannot tell which part of a {type(batch).__name__} holds the images", instead
        )
    return changed


@dataclass(frozen=True)
class CropAndFlip:
    """Pad with zeros, cut a random window of the old size, mirror every second image."""

    pad: int = 4

    def __call__(self, x: Tensor, draws: Draws) -> Tensor:
        if x.ndim != 4:
            raise InputError(
                f"crop_and_flip needs images (N, C, H, W), not shape {tuple(x.shape)}",
                "Leave augment out, or give the data as images.",
            )
        height, width = x.shape[2:]
        places = 2 * self.pad + 1
        top = sent(draws.below(places, stream=0), x.device)
        left = sent(draws.below(places, stream=1), x.device)
        mirrored = sent(draws.uniform(stream=2) < 0.5, x.device)
        padded = functional.pad(x, (self.pad,) * 4)
        windows = padded.unfold(2, height, 1).unfold(3, width, 1)
        cut = windows[torch.arange(len(x), device=x.device), :, top, left]
        return torch.where(mirrored[:, None, None, None], cut.flip(3), cut)


def crop_and_flip(pad: int = 4) -> CropAndFlip:
    """The usual augmentation of small photographs, for ``fit(augment=…)``."""
    if pad < 0:
        raise InputError(f"crop_and_flip: invalid pad={pad}", "Use pad=4, or 0 to only flip.")
    return CropAndFlip(pad)
