"""Torch optimizers that update as a Keras optimizer does, and the transfer of their state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from phalanx.adapters.keras.keras_model import KerasModel
from phalanx.core.errors import InputError
from phalanx.sync.state import keras_rules as rules

KINDS = {kind.__name__.removeprefix("Keras"): kind for kind in rules.KerasRule.__subclasses__()}
KINDS["AdamW"] = rules.KerasAdam
_SLOTS = {
    "momentum": ("momentums", "_momentums", "_m"),
    "velocity": ("_velocities",),
    "velocity_hat": ("_velocity_hats",),
    "norm": ("_u",),
    "average_gradient": ("_average_gradients",),
    "accumulator": ("_accumulators",),
    "linear": ("_linears",),
    "accumulated_grad": ("_accumulated_grads",),
    "accumulated_delta_var": ("_accumulated_delta_vars",),
}
"""The attributes in which Keras' optimizers keep the variables of each slot."""
_ABSENT = {
    "use_ema": "keeps an average of the weights (use_ema)",
    "gradient_accumulation_steps": "accumulates gradients (gradient_accumulation_steps)",
    "loss_scale_factor": "scales the loss (loss_scale_factor)",
}


def rule_of(mirror: KerasModel) -> Any:
    """Return a torch optimizer of the mirror's parameters that updates as Keras' optimizer does."""
    from keras import backend

    powers = {"float32_powers": True} if backend.backend() == "tensorflow" else {}
    optimizer = mirror.optimizer
    _check(optimizer, mirror.variables)
    kind, config = KINDS[type(optimizer).__name__], optimizer.get_config()
    options = {name: config[name] for name in kind.options}
    options |= {"lr": rate_of(optimizer), "clipvalue": optimizer.clipvalue or 0.0}
    if optimizer.clipnorm:
        kind, options = rules.by_variable(kind), {**options, "clipnorm": optimizer.clipnorm}
    decay = optimizer.weight_decay or 0.0
    groups: dict[bool, list[nn.Parameter]] = {}
    for variable, parameter in zip(mirror.variables, mirror.parameters, strict=True):
        decays = bool(decay) and optimizer._use_weight_decay(variable)
        groups.setdefault(decays, []).append(parameter)
    given = [
        {"params": found, "weight_decay": decay if decays else 0.0, **powers}
        for decays, found in groups.items()
    ]
    return kind(given, **options)


def rate_of(optimizer: Any, step: int | None = None) -> float:
    """The learning rate: a schedule's at ``step``, or the current value of a function."""
    from keras.optimizers import schedules

    rate = optimizer._learning_rate
    if step is None or not callable(rate):
        return float(optimizer.learning_rate)
    return float(rate(step) if isinstance(rate, schedules.LearningRateSchedule) else rate())


def _check(optimizer: Any, variables: Sequence[Any]) -> None:
    name = type(optimizer).__name__
    if optimizer is None:
        raise InputError("the model has no optimizer", "Give model.compile an optimizer.")
    if name == "LossScaleOptimizer":
        raise InputError(
            "the optimizer scales the loss (mixed_float16), which Phalanx does not support",
            'Use keras.config.set_dtype_policy("mixed_bfloat16"), or float32.',
        )
    if name not in KINDS or not type(optimizer).__module__.startswith("keras."):
        raise InputError(
            f"the optimizer {name} cannot be shared among workers",
            f"Use one of {', '.join(KINDS)}.",
        )
    for attribute, words in _ABSENT.items():
        if getattr(optimizer, attribute, None):
            raise InputError(
                f"the optimizer {words}, which Phalanx does not support", "Leave that option out."
            )
    limited = next((v for v in variables if getattr(v, "constraint", None) is not None), None)
    if limited is not None:
        raise InputError(
            f"{limited.path} has a constraint, which Phalanx does not support",
            "Leave the constraint out, or use a regularizer.",
        )


def read_state(mirror: KerasModel, target: torch.optim.Optimizer) -> None:
    """Copy the state of Keras' optimizer to ``target``."""
    from keras import ops

    source, steps = mirror.optimizer, int(mirror.optimizer.iterations)
    pairs = zip(mirror.variables, mirror.parameters, strict=True)
    for variable, parameter in pairs if steps else ():
        state, place = target.state[parameter], _place(source, variable)
        for slot, kept in _kept(source).items():
            state[slot] = torch.from_numpy(ops.convert_to_numpy(kept[place].value).copy())
        if isinstance(target, rules.KerasRule) and target.counts:
            state["step"] = torch.tensor(float(steps))


def write_state(source: torch.optim.Optimizer, mirror: KerasModel) -> None:
    """Copy the state of ``source`` to Keras' optimizer."""
    target = mirror.optimizer
    if (product := getattr(target, "_u_product", None)) is not None:  # of Nadam
        steps = int(source.state[mirror.parameters[0]].get("step", 0))
        product.assign(rules.nadam_product(target.beta_1, steps))
    for variable, parameter in zip(mirror.variables, mirror.parameters, strict=True):
        place = _place(target, variable)
        for slot, kept in _kept(target).items():
            value = source.state[parameter].get(slot)
            if value is not None:
                kept[place].assign(value.detach().cpu().numpy())


def _place(optimizer: Any, variable: Any) -> int:
    """Return the variable's index; raise if it was frozen when the optimizer was built."""
    try:
        return int(optimizer._get_variable_index(variable))
    except KeyError:
        raise InputError(
            f"the optimizer was built without {variable.path}, which is trainable now",
            "Call model.compile(…) again before model.fit.",
        ) from None


def _kept(optimizer: Any) -> dict[str, list[Any]]:
    found = {}
    for slot, names in _SLOTS.items():
        for name in names:
            kept = getattr(optimizer, name, None)
            if kept and isinstance(kept, list):
                found[slot] = kept
    return found
