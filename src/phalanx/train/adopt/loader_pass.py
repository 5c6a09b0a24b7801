"""One pass over the script's own ``DataLoader``: its samples in its own order, to be shared out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from phalanx.core.errors import InputError
from phalanx.data.lazy import LoaderOptions, Seeded
from phalanx.data.reader import Reader, reader_of


@dataclass(frozen=True)
class LoaderPass:
    """Sample numbers of all batches one after another, and how many a batch has."""

    order: Tensor
    batch: int


def is_ours(loader: DataLoader[Any]) -> bool:
    """Whether a reader of Phalanx made it."""
    return isinstance(loader.dataset, Seeded)


def order_of(loader: DataLoader[Any]) -> LoaderPass:
    """Draws as ``iter(loader)`` does alone: a seed for loader processes, then the sampler's."""
    sampler = loader.batch_sampler
    if isinstance(loader.dataset, IterableDataset):
        raise InputError(
            "the script trains on an IterableDataset, whose samples have no numbers to share out",
            "Use a map-style Dataset (__len__ and __getitem__), or train with --workers 1.",
        )
    if sampler is None:
        raise InputError(
            "the DataLoader that the script trains on makes its own batches (batch_size=None)",
            "Give it a batch_size, or train with --workers 1.",
        )
    torch.empty((), dtype=torch.int64).random_(generator=loader.generator)
    batches = [list(batch) for batch in sampler]
    sizes = {len(batch) for batch in batches[:-1]}
    batch = max(sizes, default=0) or (len(batches[0]) if batches else 0)
    if not batches or len(sizes) > 1 or len(batches[-1]) > batch:
        raise InputError(
            "the DataLoader's batch_sampler makes "
            + ("batches of different sizes" if batches else "no batches"),
            "Phalanx shares out batches of one size (a last one may be smaller); train with "
            "--workers 1, or use a batch sampler with one size.",
        )
    return LoaderPass(torch.tensor([int(i) for b in batches for i in b], dtype=torch.int64), batch)


def read_by_number(loader: DataLoader[Any], seed: int) -> Reader:
    """Reads the loader's samples by number, as it would put them together."""
    options = LoaderOptions(
        batch=loader.batch_size,
        collate=loader.collate_fn,
        processes=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        timeout=loader.timeout,
        context=loader.multiprocessing_context,
        prepare_process=loader.worker_init_fn,
    )
    return reader_of(loader.dataset, options, seed=seed)
