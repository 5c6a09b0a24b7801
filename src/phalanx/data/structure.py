"""Finds and changes the tensors in nested batches and outputs: lists, mappings, data classes."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

Change = Callable[[Any], Any]


def map_tensors(value: Any, change: Change, other: Change | None = None) -> Any:
    """``value`` with every tensor in it changed; what holds them keeps its type.

    ``other`` changes objects that are none of the known holders; without it they stay.
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, PackedSequence):  # its batch sizes stay where they are
        moved = {n: map_tensors(getattr(value, n), change) for n in value._fields}
        return value._replace(**moved | {"batch_sizes": value.batch_sizes})
    if isinstance(value, str | bytes | int | float) or value is None:
        return value
    parts = _parts(value)
    if parts is None:
        return other(value) if other is not None else value
    changed = {key: map_tensors(part, change, other) for key, part in parts.items()}
    if all(changed[key] is part for key, part in parts.items()):
        return value
    return _like(value, changed)


def sent(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor`` on ``device``; the host does not wait until a GPU has it."""
    if device.type != "cuda" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif not isinstance(value, str | bytes):
        for part in (_parts(value) or {}).values():
            yield from tensors_in(part)


def _parts(value: Any) -> dict[Any, Any] | None:
    """What ``value`` holds, by key, field or place; ``None`` if it is no known holder."""
    if isinstance(value, Mapping):
        return dict(value.items())
    if isinstance(value, list | tuple):
        return dict(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return None


def _like(value: Any, parts: dict[Any, Any]) -> Any:
    if type(value) is dict:
        return parts
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*parts.values())
    if isinstance(value, list | tuple):
        return type(value)(parts.values())
    if isinstance(value, Mapping) and not isinstance(value, MutableMapping):
        return type(value)(parts)  # type: ignore[call-arg]
    clone = copy.copy(value)
    for key, part in parts.items():
        if isinstance(value, Mapping):
            clone[key] = part
        else:
            object.__setattr__(clone, key, part)  # a frozen dataclass too
    return clone


def with_first(batch: Any, change: Change) -> Any:
    """``batch`` with its first part changed; ``None`` where it has no first part."""
    if isinstance(batch, Tensor):
        return change(batch)
    if not isinstance(batch, list | tuple) or not batch:
        return None
    return _like(batch, dict(enumerate(batch)) | {0: change(batch[0])})


def plain(value: Any) -> Any:
    """``value`` with all containers turned into lists and dictionaries, and arrays into tensors."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(np.ascontiguousarray(value))
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    parts = None if isinstance(value, str | bytes) else _parts(value)
    return value if parts is None else {key: plain(part) for key, part in parts.items()}


def joined(parts: Sequence[Any]) -> Any:
    """Concatenate the values of several batches, made ``plain``, into those of one batch."""
    first = parts[0]
    if isinstance(first, Tensor):
        return torch.cat([part if part.ndim else part.reshape(1) for part in parts])
    if isinstance(first, dict):
        return {key: joined([part[key] for part in parts]) for key in first}
    if isinstance(first, list) and any(isinstance(item, Tensor | dict | list) for item in first):
        return [joined(items) for items in zip(*parts, strict=True)]
    if isinstance(first, list):
        return [item for part in parts for item in part]
    return list(parts)
