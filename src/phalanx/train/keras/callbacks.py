"""Callbacks run once: on the first worker, whose decisions the others follow.

Those of the script's own that act inside an epoch (a rate for each batch) run on every worker: no
worker waits for another one's callback between two batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_INSIDE = (
    "on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end",
)  # fmt: skip


def callbacks_of(
    model: Any, given: Any, *, first: bool, launched: bool, verbose: Any, epochs: int, steps: int
) -> Any:
    """Keras' own list of them, for this worker."""
    from keras import callbacks as keras_callbacks

    if isinstance(given, keras_callbacks.CallbackList):
        given = given.callbacks
    chosen = list(given) if isinstance(given, Iterable) else [given] if given else []
    if not first:
        chosen = [each for each in chosen if _acts_inside(each)]
    if verbose == "auto" and launched:
        verbose = 2  # one line an epoch: a bar is for terminals
    return keras_callbacks.CallbackList(
        chosen,
        add_history=True,
        add_progbar=first and verbose != 0,
        verbose=verbose,
        epochs=epochs,
        steps=steps,
        model=model,
    )


def _acts_inside(callback: Any) -> bool:
    """Keras' own only show and save, but for a ``LambdaCallback``."""
    kind = type(callback)
    if any(name in vars(callback) for name in _INSIDE):
        return True
    if kind.__module__.startswith("keras."):
        return False
    return any(
        getattr(owner, name, None) is not None
        for owner in kind.__mro__
        if not owner.__module__.startswith(("keras.", "builtins"))
        for name in _INSIDE
        if name in vars(owner)
    )
