"""Gathers a script's own values from all workers, encoded as bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from phalanx.adapters.torch_models import as_pairs, from_pairs
from phalanx.core.errors import InputError
from phalanx.data.structure import plain
from phalanx.train.checkpoint.kept_state import pack, unpack
from phalanx.train.control.rendezvous import GATHER
from phalanx.train.engine.engine import Engine

WAYS = ("mean", "sum", "min", "max")
Gather = Callable[[bytes], list[bytes]]


def gather(value: Any, exchange: Gather) -> list[Any]:
    return [_decoded(found) for found in exchange(_encoded(value))]


def reduce(value: Any, how: str, exchange: Gather) -> Any:
    if how not in WAYS:
        raise InputError(f"run.reduce: unknown reduction '{how}'", f"Use {', '.join(WAYS)}.")
    found = gather(value, exchange)
    where = value.device if isinstance(value, Tensor) else None
    return _combined(found, how, where)


def bring_together(engine: Engine, mine: bytes, inside: bool, over: bool) -> list[bytes]:
    """Wait for all workers, and exchange bytes. ``inside``: a pass over the data is under way."""
    if over:
        raise InputError(
            "run.gather was called after the training had ended",
            "Call it inside the loop over run.epochs.",
        )
    if inside and not engine.lockstep:
        raise InputError(
            f"run.gather between batches: under {engine.phase}, workers have unequal numbers",
            "Call it after the loop over run.batches.",
        )
    resting = engine.resting
    engine.rest()  # so that no free-running worker waits for this one's next step
    engine.meet(GATHER)
    found = engine.gather(mine)
    if not resting:
        engine.arrive()
    return found


def _combined(found: Sequence[Any], how: str, where: torch.device | None) -> Any:
    first = found[0]
    if isinstance(first, dict):
        return {key: _combined([part[key] for part in found], how, where) for key in first}
    if isinstance(first, Tensor):
        rows = torch.stack([part.to(where) for part in found])
        if how == "mean":
            return (rows if rows.is_floating_point() else rows.double()).mean(dim=0)
        return rows.sum(dim=0) if how == "sum" else getattr(torch, f"a{how}")(rows, dim=0)
    if not isinstance(first, int | float):
        raise InputError(
            f"run.reduce takes numbers and tensors, not {type(first).__name__}", "Use run.gather."
        )
    if how == "mean":
        return sum(found) / len(found)
    return {"sum": sum, "min": min, "max": max}[how](found)  # type: ignore[operator]


def _encoded(value: Any) -> bytes:
    tensors: dict[str, Tensor] = {}
    try:
        structure = pack("value", plain(value), tensors)
    except InputError as error:
        raise InputError(
            f"run.gather cannot send {error.cause.partition(' is ')[2].partition(',')[0]}",
            "Give numbers, texts, tensors, or lists and dictionaries of them.",
        ) from None
    tensors = {name: tensor.contiguous() for name, tensor in tensors.items()}
    return save(as_pairs(tensors), {"value": json.dumps(structure)})


def _decoded(found: bytes) -> Any:
    length = int.from_bytes(found[:8], "little")
    header = json.loads(found[8 : 8 + length])
    return unpack(json.loads(header["__metadata__"]["value"]), from_pairs(load(found)))
