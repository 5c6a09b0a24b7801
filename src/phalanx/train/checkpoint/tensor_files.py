"""The tensors of one checkpoint: safetensors files, hashed while they are written."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from phalanx.adapters.torch_models import as_pairs, from_pairs
from phalanx.core.errors import InputError
from phalanx.train.checkpoint.checkpoint_manifest import (
    SHARED,
    CheckpointManifest,
    FileRecord,
    rank_file,
)
from phalanx.train.checkpoint.disk import Steps, durable, unwatched

CHUNK = 1 << 20  # bytes: both the hash and the write let go of the interpreter's lock meanwhile

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.complex64: "C64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], steps: Steps = unwatched
) -> FileRecord:
    """Write ``tensors`` in the safetensors format, without a second copy of them in memory.

    safetensors' own writer gives no checksum: it would have to be read again for that.
    """
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
    """What such a file consists of, without a copy of the tensors."""
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
    """What all workers have in common (``None``), or what is the own of ``rank``.

    A worker that was not there when the checkpoint was written has nothing of its own.
    """
    name = SHARED if rank is None else rank_file(rank)
    if name not in manifest.files:
        return {}
    try:
        with safe_open(checkpoint / name, framework="pt") as file:
            # Copies: what is mapped would end the process if the file were cut short.
            return from_pairs({key: file.get_tensor(key).clone() for key in file.keys()})  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        cause = f"{checkpoint.name}/{name} cannot be read ({error})"
        raise InputError(cause, "Resume from another checkpoint.") from error
