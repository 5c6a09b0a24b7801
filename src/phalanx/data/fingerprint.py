"""A few numbers by which workers notice that their data sets are not the same.

A few samples at fixed places are read, each several times. Parts that differ between readings (from
a dataset's own generator) are left out; Python's, NumPy's and torch's generators are seeded by the
reader. Real numbers may differ a little, because unlike machines decode and scale images a little
differently.
"""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from phalanx.data.reader import Reader

PLACES, PARTS, READS = 8, 6, 3
SECONDS = 0.5
"""After so many seconds no more samples are read, except the first one."""
ROOM = 0.01
_MOST = 1 << 16  # numbers of one part that are looked at
_EXACT = -1.0  # instead of a norm: compared as it is
Print = NDArray[np.float64]
"""A number for each place and each part of the sample there, and its norm; NaN is unknown."""


def places_of(length: int) -> list[int]:
    return sorted({place * (length - 1) // (PLACES - 1) for place in range(PLACES)})


def fingerprint(reader: Reader) -> Print:
    found = np.full((PLACES, PARTS, 2), np.nan)
    places = places_of(len(reader))
    samples = reader.peek([place for place in places for _ in range(READS)])
    until, unstable = time.monotonic() + SECONDS, np.zeros(PARTS, bool)
    try:
        for number, sample in enumerate(samples):
            place, again = divmod(number, READS)
            parts = np.full((PARTS, 2), np.nan)
            for at, part in zip(range(PARTS), _leaves(sample), strict=False):
                parts[at] = part
            if again:
                unstable |= ~((found[place] == parts) | np.isnan(found[place])).all(axis=1)
            found[place] = parts
            if again and time.monotonic() > until:
                break
    except Exception:  # the training will report what cannot be read
        return np.full_like(found, np.nan)
    found[:, unstable] = np.nan
    return found


def first_difference(mine: Print, other: Print) -> int | None:
    """The number of the first place where the two data sets have different samples."""
    known = ~np.isnan(mine[..., 0]) & ~np.isnan(other[..., 0])
    exact = (mine[..., 1] == _EXACT) | (other[..., 1] == _EXACT)
    apart = np.abs(mine[..., 0] - other[..., 0]) > ROOM * (mine[..., 1] + other[..., 1])
    places = (known & np.where(exact, (mine != other).any(axis=-1), apart)).any(axis=1)
    return int(places.argmax()) if places.any() else None


def _leaves(value: Any) -> Iterator[tuple[float, float]]:
    if isinstance(value, Tensor):
        value = value.detach().cpu()
        yield _numbers(value.float().numpy() if value.is_floating_point() else value.numpy())
    elif isinstance(value, np.ndarray | float | np.generic):
        yield _numbers(np.asarray(value))
    elif value is None or isinstance(value, str | bytes | int):
        yield _hashed(repr(value).encode())
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _leaves(value[key])
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _leaves(item)
    elif dataclasses.is_dataclass(value):
        for part in dataclasses.fields(value):
            yield from _leaves(getattr(value, part.name))
    elif callable(getattr(value, "tobytes", None)):  # images, mostly
        yield _hashed(value.tobytes())


def _numbers(array: NDArray[Any]) -> tuple[float, float]:
    flat = array.reshape(-1)[:: max(1, array.size // _MOST)]
    if flat.dtype.kind in "fc" or flat.dtype == np.uint8:
        real = np.nan_to_num(np.abs(flat) if flat.dtype.kind == "c" else flat.astype(np.float64))
        return float(real @ np.cos(1.7 * np.arange(len(real)))), float(np.linalg.norm(real))
    whole = flat.astype(np.int64) if flat.dtype.kind in "iub" else flat
    return _hashed(repr((array.shape, whole.tolist())).encode())


def _hashed(content: bytes) -> tuple[float, float]:
    return float(int.from_bytes(hashlib.sha256(content).digest()[:6], "little")), _EXACT
