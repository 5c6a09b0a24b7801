"""Reads and writes the tensors of a checkpoint: safetensors files that are hashed while they are
written, and are read as a plain state_dict by the parameters' names."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import _TYPES
from torch import Tensor

from phalanx.adapters.torch_models import as_pairs, from_pairs
from phalanx.core.errors import InputError
from phalanx.sync.state.layout import Layout, ParameterPlace
from phalanx.train.checkpoint.checkpoint_manifest import (
    SHARED,
    CheckpointManifest,
    FileRecord,
    FlatLayout,
    PlaceRecord,
    rank_file,
)
from phalanx.train.checkpoint.disk import Steps, durable, unwatched

CHUNK = 1 << 20  # bytes: both the hash and the write release the interpreter's lock meanwhile

_DTYPES = {dtype: name for name, dtype in _TYPES.items()}


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], steps: Steps = unwatched
) -> FileRecord:
    """Write ``tensors`` in the safetensors format, without a second copy of them in memory.
    The safetensors library gives no checksum: the file would have to be read again for one."""
    digest, size = hashlib.sha256(), 0
    with durable(path, steps) as file:
        for part in file_parts(tensors):
            for start in range(0, len(part), CHUNK):
                steps(f"chunk of {path.name}")
                chunk = part[start : start + CHUNK]
                digest.update(chunk)
                size += file.write(chunk)
    return FileRecord(size, digest.hexdigest())


def file_parts(tensors: Mapping[str, Tensor]) -> list[memoryview]:
    """Return the parts of a safetensors file, without copying the tensors."""
    tensors = as_pairs(tensors)
    # Widest first, so that every tensor begins at a multiple of its element's size.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    return [_header(names, tensors), *(_raw(tensors[name]) for name in names)]


def _header(names: list[str], tensors: Mapping[str, Tensor]) -> memoryview:
    entries, at = {}, 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in _DTYPES or name == "__metadata__":
            raise ValueError(f"a checkpoint cannot hold '{name}' ({tensor.dtype})")
        end = at + tensor.numel() * tensor.element_size()
        kind = _DTYPES[tensor.dtype]
        entries[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [at, end]}
        at = end
    text = msgspec.json.encode(entries)
    text += b" " * (-len(text) % 8)
    return memoryview(len(text).to_bytes(8, "little") + text)


def _raw(tensor: Tensor) -> memoryview:
    flat = tensor.detach().contiguous().view(-1)
    return flat.view(torch.uint8).numpy().data


def load(checkpoint: Path, manifest: CheckpointManifest, rank: int | None) -> dict[str, Tensor]:
    """Load the tensors that all workers have in common (``rank`` is ``None``), or those of one
    rank: none, if that rank did not exist when the checkpoint was written."""
    name = SHARED if rank is None else rank_file(rank)
    if name not in manifest.files:
        return {}
    try:
        with safe_open(checkpoint / name, framework="pt") as file:
            # Make copies: mapped memory would end the process if the file were cut short.
            return from_pairs({key: file.get_tensor(key).clone() for key in file.keys()})  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        cause = f"{checkpoint.name}/{name} cannot be read ({error})"
        raise InputError(cause, "Resume from another checkpoint.") from error


REMEDY = "Use another checkpoint."
MOST_UNTIED = 1 << 30
MOST_TIMES = 64
"""The most memory for tensors under all their names: bytes, or times the bytes of the file."""


def describe(layout: Layout, names: Sequence[Sequence[str]]) -> FlatLayout:
    """Describe ``layout`` for a manifest; ``names`` holds each parameter's names, in order."""
    places = [
        PlaceRecord(list(own), p.start, p.end, p.group, list(p.shape), list(p.stride))
        for own, p in zip(names, layout.places, strict=True)
    ]
    return FlatLayout(_dtype_name(layout.dtype), layout.size, places)


def state_dict(checkpoint: Path, manifest: CheckpointManifest) -> dict[str, Tensor]:
    """Return every tensor of the models by name, each in memory of its own, tied ones as well."""
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
    """Return every trained parameter as a view of its flat buffer, once per name."""
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
    """Return the view of one parameter; refuse a place that reaches beyond its part of ``flat``."""
    length = record.end - record.start
    reach = sum((n - 1) * step for n, step in zip(record.shape, record.stride, strict=False)) + 1
    if (
        len(record.shape) != len(record.stride)
        or not 0 <= length <= flat.numel() - record.start
        or math.prod(record.shape) != length
        or (length and reach > length)
    ):
        name = next(iter(record.names), "a parameter")
        raise InputError(f"the place of '{name}' in the checkpoint is damaged", REMEDY)
    shape, stride = torch.Size(record.shape), tuple(record.stride)
    return ParameterPlace(record.start, record.end, record.group, shape, stride).view(flat)


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
