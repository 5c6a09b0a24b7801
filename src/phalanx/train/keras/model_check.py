"""Whether a model gives the same for parts of a batch as for the whole: workers have parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from phalanx.core.errors import InputError

_TOLERANCE, _HALF_TOLERANCE = 1e-4, 3e-2
"""Of the largest output: products of other shapes are rounded differently."""


def check_model(model: Any) -> None:
    """Refuse what keeps something from batch to batch, sample by sample."""
    for layer in model._flatten_layers():
        if getattr(layer, "stateful", False) is True:
            raise InputError(
                f"the layer {layer.name} is stateful: it keeps a state for each sample of a batch, "
                "but each worker has only a part of the batch",
                "Use stateful=False, or train with one worker.",
            )


def check_samples_apart(model: Any, x: Any, outputs: Sequence[Any]) -> None:
    """Refuse a model whose output for one sample depends on the others: ``outputs`` are of all of
    ``x``, in inference. (Batch normalisation, which does so in training only, has its note.)"""
    from keras import ops, tree

    whole = [ops.convert_to_numpy(each) for each in outputs]
    samples = len(next(leaf for leaf in tree.flatten(x) if leaf is not None))
    cut = samples * 3 // 7
    if not cut or any(each.shape[:1] != (samples,) for each in whole):
        return

    def outputs_of(rows: slice) -> list[Any]:
        part = tree.map_structure(lambda leaf: None if leaf is None else leaf[rows], x)
        try:
            found = tree.flatten(model(part, training=False))
        except Exception as failure:
            raise InputError(
                "the model fails on a part of a batch, and each worker has only a part: "
                f"{str(failure).strip().partition(chr(10))[0]}",
                "Do not fix the batch size in any layer, or train with one worker.",
            ) from failure
        return [ops.convert_to_numpy(each) for each in found]

    parts = zip(outputs_of(slice(0, cut)), outputs_of(slice(cut, None)), strict=True)
    again = outputs_of(slice(None))
    for one, other, both in zip(whole, again, map(np.concatenate, parts), strict=True):
        if one.dtype.kind != "f" or _differ(model, one, other):  # it draws random numbers
            continue
        if _differ(model, one, both):
            raise InputError(
                "the model's output for a sample depends on the other samples of its batch, but "
                "each worker has only a part of the batch",
                "Let each layer treat samples separately, or train with one worker.",
            )


def _differ(model: Any, one: Any, other: Any) -> bool:
    exact = model.dtype_policy.compute_dtype in ("float32", "float64")
    room = (_TOLERANCE if exact else _HALF_TOLERANCE) * float(np.abs(one).max(initial=0.0))
    return bool(np.abs(one - other).max(initial=0.0) > room)
