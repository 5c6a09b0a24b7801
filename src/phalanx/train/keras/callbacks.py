"""Keras' own callbacks run on the first worker, whose decisions the others follow.

A script's own callbacks run on every worker, like all of the script: they may change what a loss or
a layer reads. So do Keras' callbacks that write logs, for the script's own to read. No worker waits
for another one's callback between two batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from phalanx.core.errors import InputError

_INSIDE = {"on_batch_begin", "on_batch_end", "on_train_batch_begin", "on_train_batch_end"}
_WRITE_LOGS = {"LearningRateScheduler", "ReduceLROnPlateau"}
_SAVE = {"ModelCheckpoint", "SwapEMAWeights"}


def callbacks_of(
    model: Any, given: Any, *, first: bool, launched: bool, verbose: Any, epochs: int, steps: int
) -> Any:
    """Return Keras' own list of callbacks for this worker."""
    from keras import callbacks as keras_callbacks

    chosen = given_callbacks(given)
    for each in chosen:
        if isinstance(each, keras_callbacks.BackupAndRestore):
            raise InputError(
                "BackupAndRestore would restore one worker only",
                "Leave it out: Phalanx saves checkpoints, and phalanx resume continues from them.",
            )
    if not first:
        chosen = [each for each in chosen if is_own(each) or type(each).__name__ in _WRITE_LOGS]
    if verbose == "auto" and launched:
        verbose = 2  # one line an epoch, because a bar is for terminals
    return keras_callbacks.CallbackList(
        chosen,
        add_history=True,
        add_progbar=first and verbose != 0,
        verbose=verbose,
        epochs=epochs,
        steps=steps,
        model=model,
    )


def given_callbacks(given: Any) -> list[Any]:
    """Return the callbacks that ``fit`` was given, as a list."""
    given = getattr(given, "callbacks", given)
    return list(given) if isinstance(given, Iterable) else [given] if given else []


def sees_batches(callback: Any) -> bool:
    """Whether a callback may look at the model between two batches."""
    return acts_inside(callback) or getattr(callback, "save_freq", "epoch") != "epoch"


def is_own(callback: Any) -> bool:
    """Whether a callback runs code of the script, in a method or a function."""
    return bool(_own_methods(callback))


def may_save(callback: Any) -> bool:
    """Whether a callback may use the optimizer after an epoch."""
    return is_own(callback) or any(k.__name__ in _SAVE for k in type(callback).__mro__)


def acts_inside(callback: Any) -> bool:
    """Whether a callback may act between batches; most of Keras' own do not."""
    return not _INSIDE.isdisjoint(_own_methods(callback))


def _own_methods(callback: Any) -> set[str]:
    kinds = (
        k for k in type(callback).__mro__ if not k.__module__.startswith(("keras.", "builtins"))
    )
    return {n for names in map(vars, (callback, *kinds)) for n in names if n.startswith("on_")}
