"""Between flat buffers and parameters by name: what a checkpoint holds as a plain state_dict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from phalanx.core.errors import InputError
from phalanx.sync.state.layout import Layout, ParameterPlace
from phalanx.train.checkpoint.checkpoint_manifest import CheckpointManifest, FlatLayout, PlaceRecord
from phalanx.train.checkpoint.tensor_files import load

REMEDY = "Use another checkpoint."
MOST_UNTIED = 1 << 30
MOST_TIMES = 64
"""Bytes that tied tensors may come to when each has memory of its own, and times what is held."""


def describe(layout: Layout, names: Sequence[Sequence[str]]) -> FlatLayout:
    """``layout`` as it stands in a manifest; ``names`` has those of each parameter, in order."""
    places = [
        PlaceRecord(list(own), p.start, p.end, p.group, list(p.shape), list(p.stride))
        for own, p in zip(names, layout.places, strict=True)
    ]
    return FlatLayout(_dtype_name(layout.dtype), layout.size, places)


def state_dict(checkpoint: Path, manifest: CheckpointManifest) -> dict[str, Tensor]:
    """Every tensor of the models by name, each in memory of its own, tied ones as well."""
    shared = load(checkpoint, manifest, None)
    named = named_parameters(manifest, shared)
    # A tensor gets memory once for each of its names, and the manifest may give it any number.
    held = sum(value.nbytes for value in shared.values())
    wanted = sum(value.numel() * value.element_size() for _, value in named)
    if wanted > max(MOST_UNTIED, MOST_TIMES * held):
        raise InputError(
            f"the checkpoint holds {held:,} bytes of tensors, but lists them under so many "
            f"names that they would take {wanted:,} bytes ({len(named):,} names)",
            REMEDY,
        )
    state: dict[str, Tensor] = {}
    for name, value in named:
        state[name] = value.clone(memory_format=torch.contiguous_format)
    for key, value in shared.items():
        kind, _, name = key.partition(".")
        if kind in ("frozen", "buffer"):
            state[name] = value
    return state


def named_parameters(
    manifest: CheckpointManifest, shared: Mapping[str, Tensor]
) -> list[tuple[str, Tensor]]:
    """Every trained parameter as a view of its flat buffer, once per name."""
    found: list[tuple[str, Tensor]] = []
    for i, optimizer in enumerate(manifest.optimizers):
        for j, layout in enumerate(optimizer.layouts):
            flat = _flat(layout, f"o{i}.parameters.{j}", shared)
            for record in layout.places:
                view = _view(record, flat)
                found.extend((name, view) for name in record.names)
    return found


def _flat(layout: FlatLayout, key: str, shared: Mapping[str, Tensor]) -> Tensor:
    flat = shared.get(key)
    if flat is None:
        raise InputError(f"the checkpoint has no '{key}'", REMEDY)
    if flat.shape != (layout.size,) or _dtype_name(flat.dtype) != layout.dtype:
        told = f"{layout.size} of {layout.dtype}"
        raise InputError(f"'{key}' in the checkpoint does not hold {told}, as it should", REMEDY)
    return flat


def _view(record: PlaceRecord, flat: Tensor) -> Tensor:
    """A place that leads out of its own part, or claims more than that holds, is refused."""
    length = record.end - record.start
    reach = sum((n - 1) * step for n, step in zip(record.shape, record.stride, strict=False)) + 1
    if (
        len(record.shape) != len(record.stride)
        or not 0 <= length <= flat.numel() - record.start
        or math.prod(record.shape) != length
        or (length and reach > length)
    ):
        raise InputError(f"the place of '{_title(record)}' in the checkpoint is damaged", REMEDY)
    shape, stride = torch.Size(record.shape), tuple(record.stride)
    return ParameterPlace(record.start, record.end, record.group, shape, stride).view(flat)


def _title(record: PlaceRecord) -> str:
    return record.names[0] if record.names else "a parameter"


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
