"""Holding out a part of the training data."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import DataLoader, Subset

from phalanx.core.errors import InputError
from phalanx.data.reader import tensors_of

SPLIT_SEED = 20221  # fixed, so that every worker and every run holds out the same samples


def hold_out(train: Any, validation: Any) -> tuple[Any, Any]:
    """``(train, validation)``: ``validation`` is a share of ``train``, or data of its own."""
    if not isinstance(validation, float | int) or isinstance(validation, bool):
        return train, validation
    if not 0 < validation < 1:
        raise InputError(f"fit: invalid validation={validation}", "Give a share (0 to 1), or data.")
    if isinstance(train, DataLoader):
        raise InputError(
            "fit: a share of a DataLoader cannot be held out",
            "Split its dataset: torch.utils.data.random_split(…), and give validation=.",
        )
    tensors = tensors_of(train)
    samples = len(tensors[0]) if tensors else len(train)
    held = max(1, round(samples * validation))
    mixed = torch.randperm(samples, generator=torch.Generator().manual_seed(SPLIT_SEED))
    if tensors:
        return (
            tuple(t[mixed[held:]] for t in tensors),
            tuple(t[mixed[:held]] for t in tensors),
        )
    return Subset(train, mixed[held:].tolist()), Subset(train, mixed[:held].tolist())
