"""Checks that the loss of a batch is the mean over its samples, so that parts can be averaged.

A sum is not, nor a mean that divides by weights or by the unmasked samples. Keras' own losses are
known; others are tried: a batch is evaluated whole, and in unequal parts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from phalanx.adapters.keras.keras_model import copy_of
from phalanx.core.errors import InputError

MOST = 96
"""Most samples that are tried."""
_MEANS = ("sum_over_batch_size", "mean")
_OF_BATCHES = {"dice", "tversky", "circle"}
"""Losses of Keras that are a ratio over the whole batch, or over all its pairs."""
_TOLERANCE, _HALF_TOLERANCE = 2e-5, 1e-2
"""Shares of the loss that rounding may make up, in float32 and in 16 bits; no more, because the
loss of an untrained model is much the same everywhere."""


_OUTPUT_TOLERANCE, _HALF_OUTPUT_TOLERANCE = 1e-4, 3e-2
"""Shares of the largest output: products of other shapes are rounded otherwise."""
_TAKEN = "the loss is assumed to be a mean over the samples of a batch"


def check_loss(model: Any, batches: Sequence[Any]) -> str | None:
    """Refuse a loss that cannot be averaged; return in words which checks were not possible."""
    check_model(model)
    if _own_step(model):
        return (
            "the model has its own train_step or compute_loss: its loss is assumed to be a mean "
            "over the samples of a batch, and its changes to gradients (clipping) apply to each "
            "worker's part"
        )
    if "sum" in {getattr(part.loss, "reduction", None) for part in _losses(model)}:
        raise InputError(
            'the loss is a sum over the samples of a batch (reduction="sum")',
            'Use reduction="sum_over_batch_size", with a smaller learning rate.',
        )
    masked, added = _outputs(model, batches[0])
    losses = [part.loss for part in _losses(model)]
    skips = [(getattr(loss, "_fn_kwargs", None) or {}).get("ignore_class") for loss in losses]
    if masked or any(label is not None for label in skips):
        raise InputError(
            "the loss skips values by a mask or ignore_class, and divides by the number left, "
            "which differs between the workers' parts of a batch",
            "End the mask inside the model, and pass sample_weight to fit; or train with one "
            "worker.",
        )
    if added or not losses or not all(map(_is_mean, losses)):
        return next(filter(None, [_try(model, batch) for batch in batches]), None)
    if _adds_in_training(model, batches[0]):
        return "losses that layers add only in training are assumed to be means over samples"
    return None


def _adds_in_training(model: Any, batch: Any) -> bool:
    from keras.src.trainers.data_adapters import data_adapter_utils

    x, _, _ = data_adapter_utils.unpack_x_y_sample_weight(batch)
    values = [
        [v.value for v in vs] for vs in (model.trainable_variables, model.non_trainable_variables)
    ]
    with _random_kept(model):
        kept, more = (
            model.stateless_call(*values, x, return_losses=True, training=training)[2]
            for training in (False, True)
        )
    return len(more) > len(kept)


def _outputs(model: Any, batch: Any) -> tuple[bool, bool]:
    """Return whether a mask reaches the loss, and whether layers add to it (``add_loss``)."""
    from keras import tree
    from keras.src import backend
    from keras.src.trainers.data_adapters import data_adapter_utils

    x, _, _ = data_adapter_utils.unpack_x_y_sample_weight(_some_of(batch))
    with _random_kept(model):
        outputs = tree.flatten(model(x, training=False))
        masked = any(backend.get_keras_mask(part) is not None for part in outputs)
        added = any(layer._losses for layer in model._flatten_layers())
        check_samples_apart(model, x, outputs)
        model._clear_losses()
    return masked, added


def _own_step(model: Any) -> bool:
    return any(
        not getattr(type(model), name).__module__.startswith("keras.")
        for name in ("train_step", "compute_loss")
    )


def _losses(model: Any) -> list[Any]:
    found = model._compile_loss
    return list(found._flat_losses or ()) if found is not None else []


def _is_mean(loss: Any) -> bool:
    function = getattr(loss, "fn", loss)
    names = {type(loss).__name__.lower(), getattr(function, "__name__", "").lower()}
    of_keras = all(
        getattr(each, "__module__", "").startswith("keras.") for each in (type(loss), function)
    )
    return of_keras and not names & _OF_BATCHES and getattr(loss, "reduction", None) in _MEANS


def _some_of(batch: Any) -> Any:
    """Return the first samples of a batch, as NumPy arrays."""
    from keras import ops, tree

    return tree.map_structure(
        lambda leaf: None if leaf is None else ops.convert_to_numpy(leaf)[:MOST], batch
    )


def _try(model: Any, batch: Any) -> str | None:
    """Compare parts with the whole; return the reason if that is not conclusive."""
    from keras import tree
    from keras.src.trainers.data_adapters import data_adapter_utils

    x, y, weights = data_adapter_utils.unpack_x_y_sample_weight(_some_of(batch))
    samples = len(next(leaf for leaf in tree.flatten(x) if leaf is not None))
    if samples < 3:
        return f"{_TAKEN}: a batch of {samples} is too small to check"
    with _random_kept(model):
        whole, again, parts = (
            model.evaluate(
                x, y, sample_weight=weights, batch_size=size, verbose=0, return_dict=True
            ).get("loss", 0.0)
            for size in (samples, samples, max(1, samples * 3 // 7))
        )
    room = (
        _TOLERANCE
        if model.dtype_policy.compute_dtype in ("float32", "float64")
        else _HALF_TOLERANCE
    )
    if abs(whole - again) > room * max(abs(whole), abs(again)):
        return f"{_TAKEN}: it cannot be checked, because the model draws random numbers"
    if abs(whole - parts) > room * max(abs(whole), abs(parts)):
        raise InputError(
            f"the loss is not a mean over the samples of a batch: it is {whole:.4g} for {samples} "
            f"samples together, but {parts:.4g} on average over parts of them",
            'Use reduction="sum_over_batch_size", means over the batch in add_loss, and '
            "sample_weight in fit; or train with one worker.",
        )
    return None


@contextmanager
def _random_kept(model: Any) -> Iterator[None]:
    """Restore random states at the end: the training must draw the same numbers as without this."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seeds = [v for v in model.non_trainable_variables if "seed_generator_state" in v.path]
    values = [copy_of(variable).numpy() for variable in seeds]
    try:
        yield
    finally:
        for variable, value in zip(seeds, values, strict=True):
            variable.assign(value)
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


def check_model(model: Any) -> None:
    """Refuse a model that keeps state for each sample from batch to batch."""
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
    room = (_OUTPUT_TOLERANCE if exact else _HALF_OUTPUT_TOLERANCE) * float(
        np.abs(one).max(initial=0.0)
    )
    return bool(np.abs(one - other).max(initial=0.0) > room)
