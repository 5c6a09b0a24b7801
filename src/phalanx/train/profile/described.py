"""What was measured, and what is trained, as a ``JobProfile`` of one machine."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from phalanx.plan.job import JobProfile, MachineCosts
from phalanx.sync.state.shard_optimizer import is_elementwise
from phalanx.train.loop.stretches import WorkerParts
from phalanx.train.profile.curves import costs_of
from phalanx.train.profile.trial import Trial


def describe_job(
    parts: WorkerParts,
    trial: Trial,
    ready: list[tuple[float, float]],
    samples: int,
    *,
    start: float,
    evaluate: float,
    spare: int,
) -> JobProfile:
    """``spare``: bytes that only measuring has used."""
    optimizers, environment = parts.trained.optimizers, parts.environment
    found = costs_of(trial.found)
    if (epochs := parts.schedule.epochs) is None:
        parts.figures.say_once("the script does not say how many epochs it trains: counted as one")
    trained = [p for o in optimizers for g in o.param_groups for p in g["params"]]
    states = (t for o in optimizers for t in _tensors_of(o))
    held = trained_tensors(parts.trained.models, optimizers)
    return JobProfile(
        key="",
        gradient_bytes=sum(p.numel() * p.element_size() for p in trained if p.requires_grad),
        state_bytes=sum(t.numel() * t.element_size() for t in (*held, *states)),
        batch=trial.largest,
        samples=samples,
        epochs=epochs or 1,
        ready=ready,
        elementwise=all(is_elementwise(optimizer) for optimizer in optimizers),
        costs={
            environment.machine: MachineCosts(
                work=found.work,
                update=found.update,
                input=found.input,
                evaluate=evaluate,
                start=start,
                memory=_peak_memory(environment.device, spare),
            )
        },
    )


def trained_tensors(
    models: Sequence[nn.Module], optimizers: Sequence[torch.optim.Optimizer]
) -> list[Tensor]:
    """Parameters and buffers, each once."""
    found = {id(t): t for m in models for t in (*m.parameters(), *m.buffers())}
    found |= {id(p): p for o in optimizers for g in o.param_groups for p in g["params"]}
    return list(found.values())


def _tensors_of(optimizer: torch.optim.Optimizer) -> Iterator[Tensor]:
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, Tensor))


def _peak_memory(device: torch.device, spare: int) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return max(0, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - spare)
