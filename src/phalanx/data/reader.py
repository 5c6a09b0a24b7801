"""Reads all kinds of data of a script: tensors, arrays, a ``Dataset``, a ``DataLoader``.

``policies.sample_assignment`` decides who reads which samples; a reader turns numbers into a batch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, default_collate

from phalanx.core.errors import InputError
from phalanx.data.augment import Augment, CropAndFlip, Draws
from phalanx.data.lazy import LazyReader, LoaderOptions, loader_options
from phalanx.data.structure import sent

Batch = Any
"""A batch as the script's own DataLoader would yield it."""
K = TypeVar("K")
KINDS = "Give tensors (x, y), NumPy arrays, a Dataset, a DataLoader, or a generator function."


@runtime_checkable
class Reader(Protocol):
    """Samples 0 to ``len - 1``, read by number."""

    shuffle: bool
    """Whether the order of the samples is free."""
    background: bool
    """Whether ``stream`` may run in a thread beside the training."""
    batch: int | None
    """The batch size that the script's DataLoader names."""
    drop_last: bool
    """Whether that DataLoader leaves out a last batch that is not full."""

    def __len__(self) -> int: ...

    def fetch(self, indices: Tensor, epoch: int) -> Batch: ...

    def peek(self, places: Sequence[int]) -> Iterator[Any]:
        """The samples at ``places``, one by one, before they are collated."""

    def stream(
        self, orders: Iterable[tuple[K, Tensor]], epoch: int
    ) -> Iterator[tuple[K, Batch | None]]:
        """The batch of each (key, indices), in order; ``None`` where there are no indices.

        Orders may be taken ahead of time. Where ``background`` is true, this whole iterator may
        run in a thread beside the training.
        """
        for key, indices in orders:
            yield key, self.fetch(indices, epoch) if len(indices) else None


class TensorReader(Reader):
    """Tensors in memory, one row a sample."""

    background = True

    def __init__(
        self,
        tensors: Sequence[Tensor],
        *,
        seed: int = 0,
        augment: Augment | None = None,
        options: LoaderOptions | None = None,
        form: Callable[[list[Tensor]], Batch] = tuple,
    ) -> None:
        shapes = [tuple(t.shape) for t in tensors]
        if any(not shape for shape in shapes):
            raise InputError("the data has a tensor without dimensions", "Use one row per sample.")
        rows = {shape[0] for shape in shapes}
        if len(rows) > 1:
            raise InputError(
                f"the tensors of the data differ in length: {', '.join(str(s[0]) for s in shapes)}",
                "Give each tensor one row per sample.",
            )
        if rows == {0}:
            raise InputError("the data is empty", "Give at least one sample.")
        options = options or LoaderOptions()
        self.tensors = tuple(t.detach().contiguous() for t in tensors)
        self.shuffle, self.batch = options.shuffle, options.batch
        self.drop_last, self.pins = options.drop_last, options.pins
        self._seed, self._augment, self.form = seed, augment, form
        self._options = options
        self.note: str | None = None
        """A note for the user on where the tensors are."""

    @property
    def augmented(self) -> bool:
        return self._augment is not None

    def with_augment(self, augment: Augment, seed: int) -> TensorReader:
        return TensorReader(
            self.tensors, seed=seed, augment=augment, options=self._options, form=self.form
        )

    @property
    def device(self) -> torch.device | None:
        """Where all of the tensors are, if that is one place."""
        found = {t.device for t in self.tensors}
        return found.pop() if len(found) == 1 else None

    def is_on(self, device: torch.device) -> bool:
        """Whether the tensors are on ``device``; plain ``cuda`` is any GPU."""
        found = self.device
        return (
            found is not None
            and found.type == device.type
            and (device.index in (None, found.index))
        )

    @property
    def moves(self) -> bool:
        """Whether the tensors may be moved to another device: a script's own augmentation may
        need them in the host's memory."""
        return self._augment is None or isinstance(self._augment, CropAndFlip)

    def on(self, device: torch.device) -> TensorReader:
        """Returns the same samples in memory of ``device``."""
        return TensorReader(
            [t.to(device) for t in self.tensors],
            seed=self._seed, augment=self._augment, options=self._options, form=self.form,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.tensors[0])

    def fetch(self, indices: Tensor, epoch: int) -> Batch:
        # A gather, never a view: a script may change its batch in place.
        rows = [
            t.index_select(0, indices if t.device == indices.device else sent(indices, t.device))
            for t in self.tensors
        ]
        if self._augment is not None:
            rows[0] = self._augment(rows[0], Draws(self._seed, epoch, indices))
        return self.form(rows)

    def peek(self, places: Sequence[int]) -> Iterator[Any]:
        return (tuple(t[place] for t in self.tensors) for place in places)


def order(samples: int, seed: int, number: int, shuffle: bool = True) -> Tensor:
    """The order of the samples in pass ``number``; the same on every worker."""
    if not shuffle:
        return torch.arange(samples)
    mixed = np.random.SeedSequence([seed, number]).generate_state(1, np.uint64)[0]
    generator = torch.Generator().manual_seed(int(mixed >> np.uint64(1)))
    return torch.randperm(samples, generator=generator)


def as_reader(data: Any, *, seed: int = 0, augment: Augment | None = None) -> Reader:
    """A :class:`Reader` of ``data``, or an :class:`InputError` that says why there is none."""
    if isinstance(data, Reader):
        if augment is None:
            return data
        if (with_augment := getattr(data, "with_augment", None)) is not None:
            augmented: Reader = with_augment(augment, seed)
            return augmented
    if isinstance(data, DataLoader):
        return reader_of(data.dataset, loader_options(data), seed=seed, augment=augment)
    if isinstance(data, IterableDataset) or inspect.isgeneratorfunction(data):
        return _stream_of(data, seed, augment, LoaderOptions())
    tensors = tensors_of(data)
    if tensors is not None:
        return TensorReader(tensors, seed=seed, augment=augment, form=_form_of(data))
    if hasattr(data, "__getitem__") and not isinstance(data, dict | str | bytes):
        return LazyReader(data, seed=seed, augment=augment)
    if isinstance(data, Iterator):
        raise InputError(
            f"the data is a {type(data).__name__}, which can be read only once, not in every epoch",
            "Give the generator function itself, without calling it, or an IterableDataset.",
        )
    raise InputError(f"cannot read data of type {type(data).__name__}", KINDS)


def reader_of(
    dataset: Any, options: LoaderOptions, *, seed: int, augment: Augment | None = None
) -> Reader:
    """The reader of a DataLoader's dataset; a list is a dataset too."""
    if isinstance(dataset, IterableDataset):
        return _stream_of(dataset, seed, augment, options)
    plain = options.collate is default_collate and not isinstance(dataset, list | tuple)
    tensors = tensors_of(dataset) if plain else None
    if tensors is None:
        return LazyReader(dataset, seed=seed, augment=augment, options=options)
    form = _form_of(dataset)
    return TensorReader(tensors, seed=seed, augment=augment, options=options, form=form)


def _stream_of(data: Any, seed: int, augment: Augment | None, options: LoaderOptions) -> Reader:
    from phalanx.data.stream import StreamedSamples

    if augment is not None:
        raise InputError("augment does not work on data streams", "Augment inside the dataset.")
    if not callable(getattr(data, "__iter__", None)):  # a generator function
        return StreamedSamples(data, None, seed, options)
    length = len(data) if hasattr(type(data), "__len__") else None
    return StreamedSamples(data.__iter__, length, seed, options)


def tensors_of(data: Any) -> list[Tensor] | None:
    """The tensors behind ``data`` when that is all it is, else ``None``."""
    if isinstance(data, Tensor | np.ndarray):
        return [_tensor(data)]
    if type(data) is TensorDataset:
        return list(data.tensors)
    if type(data) is Subset:
        listed = isinstance(data.dataset, list | tuple)  # samples, not columns
        whole = None if listed else tensors_of(data.dataset)
        if whole is None:
            return None
        rows = torch.as_tensor(data.indices, dtype=torch.int64)
        return [tensor.index_select(0, rows) for tensor in whole]
    if isinstance(data, list | tuple):
        if not data or not all(isinstance(part, Tensor | np.ndarray) for part in data):
            kinds = ", ".join(type(part).__name__ for part in data[:4])
            raise InputError(f"cannot read data of ({kinds})", KINDS)
        return [_tensor(part) for part in data]
    return None


def _form_of(data: Any) -> Callable[[list[Tensor]], Batch]:
    """How a DataLoader makes a batch of rows: a tensor for a tensor, a list for a Dataset."""
    while type(data) is Subset:
        data = data.dataset
    if isinstance(data, Tensor | np.ndarray):
        return lambda rows: rows[0]
    return tuple if isinstance(data, tuple) else list


def _tensor(data: Any) -> Tensor:
    if isinstance(data, Tensor):
        return data
    try:
        return torch.from_numpy(np.ascontiguousarray(data))
    except TypeError as error:
        raise InputError(
            f"cannot read a NumPy array of {data.dtype}", "Convert it to numbers first."
        ) from error
