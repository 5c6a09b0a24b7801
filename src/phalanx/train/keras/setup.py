"""Prepares ``fit`` on several workers, and refuses what it cannot do."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from phalanx.adapters.keras.keras_model import AVERAGED, KerasModel
from phalanx.core.errors import InputError
from phalanx.core.spec import parse_spec
from phalanx.train.keras.arrays import ArraySource, FitArguments, StreamSource
from phalanx.train.start.environment import Environment
from phalanx.train.start.seed import Streams

RESUMED = (
    "resumed: the script runs from its start, and the epochs before the checkpoint are skipped; "
    "callbacks start without their earlier state"
)


STOPS_LATER = (
    "a callback asked to stop inside an epoch: the workers finish the epoch first, so they take "
    "more steps than one worker would"
)
SEES_A_PART = (
    "callbacks that act on batches run on every worker; their logs are of that worker's part of "
    "the batch"
)


def notes_of(mirror: KerasModel, source: ArraySource | StreamSource, workers: int) -> list[str]:
    """Return notes on what was found, and on what differs from one process."""
    model = mirror.model
    count = sum(p.numel() for p in mirror.parameters)
    found = [
        f"Keras: {type(model).__name__} of {count:,} parameters, "
        f"{type(model.optimizer).__name__}; {source.words}, batch {source.batch}"
    ]
    if workers == 1:
        return found
    names = {variable.name for variable in mirror.states}
    if names & AVERAGED:
        found.append("batch norm: statistics of each worker's part of a batch, averaged per epoch")
    if others := sorted(names - AVERAGED):
        found.append(f"{', '.join(others)}: of the first worker, which sees its part of the data")
    metrics = (each for metric in model.metrics for each in getattr(metric, "metrics", [metric]))
    if own := sorted(filter(None, map(_own_metric, metrics))):
        found.append(f"{', '.join(own)}: computed on each worker's part of a batch, then added up")
    return found


def _own_metric(metric: Any) -> str | None:
    """Return the metric's name if the script defines it; ``None`` for one of Keras."""
    function = getattr(metric, "_fn", metric)
    kinds = (type(metric), function if callable(function) else type(metric))
    ours = all(getattr(kind, "__module__", "keras.").startswith("keras.") for kind in kinds)
    return None if ours else str(metric.name)


def tests_itself(model: Any) -> bool:
    """Whether the script has its own ``test_step``, whose figures may not be sums over samples."""
    return not type(model).test_step.__module__.startswith("keras.")


def check_options(environment: Environment, model: Any) -> None:
    settings = environment.settings
    if backend_of().shares_memory and model.steps_per_execution != 1:
        raise InputError(
            "steps_per_execution must be 1 with Keras on torch", "Leave it out of model.compile."
        )
    if settings.profile_steps and not backend_of().shares_memory:
        raise InputError(
            "--profile sees nothing of a model whose backend is not torch",
            "Add --framework keras-torch, or leave --profile out.",
        )
    if settings.precision != "float32":
        raise InputError(
            "--precision has no effect on a Keras script", "Set it in the script itself."
        )


def check_clipping(optimizer: Any, environment: Environment) -> None:
    phases = parse_spec(environment.settings.strategy).phases
    free = next((p.label for p in phases if not p.traits.any_optimizer), None)
    if optimizer.clipnorm and environment.workers > 1 and free is not None:
        raise InputError(
            f"clipnorm does not work under {free}, which updates variables in parts: it needs the "
            "gradient of a whole variable",
            "Use global_clipnorm or clipvalue, or the strategy allreduce.",
        )


def source_of(
    model: Any,
    asked: FitArguments,
    environment: Environment,
    mirror: type[KerasModel],
    seeds: KerasSeeds,
) -> ArraySource | StreamSource:
    from keras.src.trainers.data_adapters import array_data_adapter

    batch = environment.settings.batch
    if array_data_adapter.can_convert_arrays((asked.x, asked.y, asked.sample_weight)):
        return ArraySource(model, asked, batch, mirror)
    if batch:
        raise InputError(
            "--batch has no effect: the script's data already come in batches",
            "Leave it out, and set the batch size where the script makes its data.",
        )
    measured = environment.settings.profile is not None
    return StreamSource(model, asked, mirror, seeds.in_common, measured=measured)


def backend_of(*, alone: bool = False) -> type[KerasModel]:
    import keras

    name = keras.backend.backend()
    if name not in _BACKENDS:
        raise InputError(f"Keras' backend {name} cannot train", "Use torch, tensorflow or jax.")
    module = importlib.import_module(f"phalanx.adapters.keras.{name}_backend")
    found: type[KerasModel] = getattr(module, f"{_BACKENDS[name]}KerasModel")
    return getattr(module, f"Lone{found.__name__}", found) if alone else found


_BACKENDS = {"torch": "Torch", "tensorflow": "TensorFlow", "jax": "Jax"}
_APART = 0x9E3779B1


class KerasSeeds(Streams):
    """Gives Keras' layers, which have their own seeds, other random numbers on each worker during
    an epoch. Random numbers for data are the same on all workers."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model

    def own(self, rank: int) -> None:
        from keras import ops

        super().own(rank)
        for variable in self._model.non_trainable_variables:
            if rank and "seed_generator_state" in variable.path:
                state = np.array(ops.convert_to_numpy(variable.value))
                state[0] = (int(state[0]) + rank * _APART) % 2**31
                variable.assign(state)
