"""What an explanation says of the parts that an adopted script trains with."""

from __future__ import annotations

import gc
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader, TensorDataset

from phalanx.core.script.explained import (
    CallingFunction,
    FoundData,
    FoundModel,
    FoundOptimizer,
    Place,
)
from phalanx.train.adopt.loader_pass import order_of
from phalanx.train.adopt.places import ScriptPlaces, loader_in


def describe_models(
    models: Sequence[nn.Module], around: Sequence[CallingFunction]
) -> list[FoundModel]:
    found = []
    for index, model in enumerate(models):
        named = next((c for c in around if c.models[index] is not None), None)
        found.append(
            FoundModel(
                kind=type(model).__name__,
                parameters=sum(p.numel() for p in model.parameters()),
                name=named.models[index] if named else None,
                place=named.place if named else None,
            )
        )
    return found


def rates(
    optimizers: Sequence[torch.optim.Optimizer], made: Mapping[int, list[Place]]
) -> tuple[list[FoundOptimizer], list[str]]:
    """The optimizers, and the schedulers of their learning rates."""
    found = []
    for optimizer in optimizers:
        places = made.get(id(optimizer), [])
        rate = optimizer.param_groups[0].get("lr")
        found.append(
            FoundOptimizer(
                kind=type(optimizer).__name__,
                rate=float(rate) if rate is not None else None,
                place=places[-1] if places else None,
                made=places,
            )
        )
    schedulers = [
        type(thing).__name__
        for thing in gc.get_objects()
        if issubclass(type(thing), LRScheduler)
        and any(_owner(thing) is known for known in optimizers)
    ]
    return found, schedulers


def _owner(scheduler: Any) -> Any:
    """Its optimizer, also where a library has wrapped it."""
    owner = getattr(scheduler, "optimizer", None)
    return getattr(owner, "optimizer", owner)


def data_of(places: ScriptPlaces, frame: FrameType, loader: DataLoader[Any]) -> FoundData:
    own, states = places.own(frame), torch.get_rng_state()
    drawn = order_of(loader)  # not for the training: its numbers are put back
    torch.set_rng_state(states)
    node = loader_in(own[0], loader) if own else None
    return FoundData(
        kind=type(loader.dataset).__name__,
        samples=len(loader.dataset),  # type: ignore[arg-type]
        batch=drawn.batch,
        batches=-(-len(drawn.order) // drawn.batch),
        shuffled=bool((drawn.order[1:] < drawn.order[:-1]).any()),
        place=places.of(own[0], node) if own else None,
        library=places.library(frame),
    )


def differences(models: Sequence[nn.Module], loader: DataLoader[Any]) -> list[str]:
    """What several workers do not do exactly as one."""
    modules = [module for model in models for module in model.modules()]
    found = []
    if any(isinstance(module, _BatchNorm) for module in modules):
        found.append("batch norm normalises each worker's part of the batch by itself")
    dropout = "dropout and " if any(isinstance(m, _DropoutNd) for m in modules) else ""
    found.append(f"{dropout}random numbers drawn in the loop: each worker draws its own")
    if not isinstance(loader.dataset, TensorDataset):
        found.append("random transforms are seeded by the sample, not by the order of reading")
    return found
