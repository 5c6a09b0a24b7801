"""Reads blocks as one set of samples: a window is in memory while the next one is read."""

from __future__ import annotations

import copy
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from phalanx.core.errors import InputError
from phalanx.data.augment import Augment, Draws, augmented
from phalanx.data.blocks.block import Block, BlockReader, Columns
from phalanx.data.blocks.block_order import BlockOrder
from phalanx.data.blocks.files import is_remote
from phalanx.data.reader import Batch, Reader

Decode = Callable[[Columns], Columns]
Form = Callable[[Columns], Batch]
WINDOWS = 3
"""Windows that are kept: a batch may need the end of one and the beginning of the next, while the
one after them is read."""
THREADS = 4


class BlockData(Reader):
    """A :class:`Reader` whose samples are the rows of all blocks, in the order of the files."""

    background = True
    batch = None

    def __init__(
        self,
        reader: BlockReader,
        *,
        form: Form,
        decode: Decode | None = None,
        shuffle: bool = True,
        window: int,
        drop_last: bool = False,
    ) -> None:
        """``window``: the least number of rows that are in memory and shuffled together."""
        self.blocks: Sequence[Block] = [block for block in reader.blocks if block.rows]
        if not self.blocks:
            raise InputError("the data is empty", "Give at least one row.")
        self.shuffle, self.drop_last, self.window = shuffle, drop_last, window
        self._reader, self._form, self._decode = reader, form, decode
        self._augment: Augment | None = None
        self._seed = 0
        self._kinds: dict[str, str] = {}
        self._stamps = {name: _stamp(name) for name in {block.source for block in self.blocks}}
        sizes = [block.rows for block in self.blocks]
        self._ends = np.cumsum(sizes)
        self._read_by(
            BlockOrder(sizes, [None] * len(sizes), window=1, seed=0, number=0, shuffle=False)
        )

    def __len__(self) -> int:
        return len(self._order)

    def with_augment(self, augment: Augment, seed: int) -> BlockData:
        data = copy.copy(self)
        data._augment, data._seed = augment, seed
        data._read_by(self._order)
        return data

    # -- the order of a pass -----------------------------------------------------------------

    def in_order(
        self, seed: int, number: int, workers: int, *, shuffle: bool
    ) -> tuple[BlockData, BlockOrder]:
        """A copy of these data that is read in the order of pass ``number``, and that order."""
        found = BlockOrder(
            [block.rows for block in self.blocks], [block.home for block in self.blocks],
            window=self.window, seed=seed, number=number, shuffle=shuffle, workers=workers,
        )  # fmt: skip
        data = copy.copy(self)
        data.shuffle = shuffle
        data._read_by(found)
        return data, found

    def _read_by(self, order: BlockOrder) -> None:
        self._order = order
        self._loaded: OrderedDict[int, Future[Columns]] = OrderedDict()
        self._spare: list[Columns] = []
        self._pool: ThreadPoolExecutor | None = None

    def read_ahead(self, window: int) -> None:
        """Begin to read a window in the background."""
        if window in self._loaded:
            self._loaded.move_to_end(window)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "phalanx-blocks")
        self._make_room()
        self._loaded[window] = self._pool.submit(self._read, window)

    # -- reading -----------------------------------------------------------------------------

    def fetch(self, indices: Tensor, epoch: int) -> Batch:
        """``indices``: places in the order that these data are read in."""
        places = indices.numpy()
        batch = self._form(self._columns(places))
        if self._augment is None:
            return batch
        draws = Draws(self._seed, epoch, torch.from_numpy(self._order.row_numbers(places)))
        instead = "Name the columns, images first: read(URL, columns=(…))."
        return augmented(batch, self._augment, draws, instead)

    def _columns(self, places: NDArray[np.int64]) -> Columns:
        first, last, ends = int(places[0]), int(places[-1]), self._order.ends
        window = self._order.window_of(first)
        if last < ends[window + 1] and (np.diff(places) == 1).all():
            whole, start = self._window(window), first - int(ends[window])
            # A copy, as a gather is: a script may change its batch in place.
            return {name: part[start : start + len(places)].clone() for name, part in whole.items()}
        windows = np.searchsorted(ends, places, side="right") - 1
        parts, found = [], []
        for window in dict.fromkeys(windows.tolist()):
            here = np.flatnonzero(windows == window)
            chosen, whole = torch.from_numpy(places[here] - ends[window]), self._window(window)
            parts.append({name: part.index_select(0, chosen) for name, part in whole.items()})
            found.append(here)
        back = torch.from_numpy(np.argsort(np.concatenate(found)))
        return {
            name: torch.cat([part[name] for part in parts]).index_select(0, back)
            for name in parts[0]
        }

    def _window(self, window: int) -> Columns:
        if window not in self._loaded:
            self._make_room()
            found: Future[Columns] = Future()
            found.set_result(self._read(window))
            self._loaded[window] = found
        self._loaded.move_to_end(window)
        return self._loaded[window].result()

    def _make_room(self) -> None:
        while len(self._loaded) >= WINDOWS:
            _, oldest = self._loaded.popitem(last=False)
            if self._order.shuffle and oldest.done() and not oldest.exception():
                self._spare.append(oldest.result())

    def _read(self, window: int) -> Columns:
        """Read a window's blocks, with all rows in the pass's order: a batch is then a slice."""
        blocks = [self.blocks[block] for block in self._order.windows[window]]
        if not self._order.shuffle:
            return self.read_block(blocks[0])
        places = [torch.from_numpy(part) for part in self._order.places_in(window)]
        first = self.read_block(blocks[0])
        # Reuse buffers: the system would have to find and clear new memory each time.
        whole = self._spare.pop() if self._spare else self._room_for(first)

        def place(number: int) -> None:
            columns = self.read_block(blocks[number]) if number else first
            for name, column in whole.items():
                column.index_copy_(0, places[number], columns[name])

        with ThreadPoolExecutor(_threads(blocks[0].source), "phalanx-decode") as pool:
            deque(pool.map(place, range(len(blocks))), maxlen=0)
        return whole

    def _room_for(self, block: Columns) -> Columns:
        """Buffers for the rows of any window."""
        rows = int(np.diff(self._order.ends).max())
        return {name: part.new_empty((rows, *part.shape[1:])) for name, part in block.items()}

    def read_block(self, block: Block) -> Columns:
        if self._stamps.get(block.source) != _stamp(block.source):
            raise InputError(
                f"{block.source} has changed since the training began",
                "Leave the files as they are while they are read; start again with the new ones.",
            )
        columns = self._reader.read(block)
        if self._decode is not None:
            try:
                columns = self._decode(columns)
            except Exception as error:
                error.add_note(f"in decode, for block {block.number} of {block.source}")
                raise
            columns = _checked(columns, block.rows)
        for name, column in columns.items():
            if not isinstance(column, Tensor):
                raise InputError(
                    f"column {name!r} of {block.source} is a {type(column).__name__} of "
                    f"{type(column[0]).__name__}, not a tensor",
                    "Turn it into a tensor: read(URL, decode=function of a dict of columns), or "
                    "leave it out: read(URL, columns=(…)).",
                )
        found = {n: f"{str(c.dtype)[6:]} {list(c.shape[1:])}" for n, c in columns.items()}
        if found != (self._kinds or found):
            raise InputError(
                f"block {block.number} of {block.source} does not fit the blocks before it: it "
                f"has {_words(found)}, they have {_words(self._kinds)}",
                "Give all files the same columns, types and shapes.",
            )
        self._kinds.update(found)
        return columns

    def __getitem__(self, place: object) -> Any:
        raise InputError(
            "data that are read by blocks have no single samples to choose",
            "Use the data as they are: run.batches(data, batch=…), phalanx.fit(train=data); or "
            'read(URL, by="sample").',
        )

    def peek(self, places: Sequence[int]) -> Iterator[Any]:
        """Returns a description of the blocks, by which workers compare data without reading."""
        for place in places:
            block = self.blocks[int(np.searchsorted(self._ends, place, side="right"))]
            yield block.source.rpartition("/")[2], block.number, block.rows


def _threads(source: str) -> int:
    """Reading threads: no more than cores, unless they wait for data from elsewhere."""
    return THREADS if is_remote(source) else min(THREADS, len(os.sched_getaffinity(0)))


def _checked(columns: Any, rows: int) -> Columns:
    """What a script's ``decode`` returned; arrays of NumPy become tensors."""
    if not isinstance(columns, dict) or not columns:
        raise InputError(
            f"decode returned {type(columns).__name__ if columns else 'nothing'}",
            "Let it return a dictionary of tensors by name.",
        )
    found = {n: torch.from_numpy(c) if isinstance(c, np.ndarray) else c for n, c in columns.items()}
    for name, column in found.items():
        count = len(column) if getattr(column, "ndim", 1) and hasattr(column, "__len__") else 0
        if count != rows:
            raise InputError(
                f"decode returned {count} rows of {name!r} for {rows} samples",
                "Let it return one row per sample.",
            )
    return found


def _stamp(source: str) -> tuple[int, int] | None:
    """A stamp by which a change of a local file is seen; ``None`` for others and for memory."""
    if not Path(source).is_file():
        return None
    found = Path(source).stat()
    return found.st_size, found.st_mtime_ns


def _words(kinds: dict[str, str]) -> str:
    return ", ".join(f"{name}: {kind.removesuffix(' []')}" for name, kind in kinds.items())
