"""``join``: runs a script's own training loop on all workers of the run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from phalanx.core.errors import InputError
from phalanx.core.settings import LOSSES, CompileMode
from phalanx.train.api.run import Run
from phalanx.train.checkpoint.kept_state import Keeper
from phalanx.train.start.environment import detect
from phalanx.train.start.seed import CommonSeed
from phalanx.train.worker.build_worker import build_worker
from phalanx.train.worker.precision import Trial

BUFFER_POLICIES = ("auto", "average", "first")


def join(
    models: nn.Module | Sequence[nn.Module],
    optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    buffers: str = "auto",
    state: Mapping[str, Keeper] | None = None,
    loss: str = "mean",
) -> Run:
    """Join the run that this process belongs to; outside of a run, just train here.

    Moves the models to this worker's device and gives every worker the first one's weights.
    ``buffers``: ``auto`` averages batch-norm statistics over workers and takes other buffers
    from the first, ``average`` averages every floating-point buffer, ``first`` none. ``state``
    names what else is saved with the run and restored when it is resumed: anything with
    ``state_dict`` and ``load_state_dict``, such as a scheduler. ``loss`` says what the script
    makes of a batch: a ``mean`` over its samples, or a ``sum``.
    """
    run = join_with(models, optimizers, buffers=buffers, loss=loss)
    run.keep(**(state or {}))
    return run


def join_with(
    models: nn.Module | Sequence[nn.Module],
    optimizers: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    buffers: str = "auto",
    trial: Trial | None = None,
    loss: str = "mean",
    compile: CompileMode = "off",
) -> Run:
    """:func:`join`, with a ``trial`` step for timing precisions when the caller has one."""
    if buffers not in BUFFER_POLICIES:
        raise InputError(f"buffers='{buffers}' is unknown", f"Use {', '.join(BUFFER_POLICIES)}.")
    if loss not in LOSSES:
        raise InputError(f"loss='{loss}' is unknown", f"Use {' or '.join(LOSSES)}.")
    if (hooks := sys.modules.get("phalanx.train.adopt.torch_patches")) is not None:
        hooks.end_adoption()  # an adopted script may still join by itself
    seeds = CommonSeed.now()
    parts, loop = build_worker(
        detect(), models, optimizers, buffers=buffers, loss=loss, trial=trial, seeds=seeds,
        compile=compile,
    )  # fmt: skip
    return Run(parts, loop)
