"""One seed for everything random, another one for each rank."""

from __future__ import annotations

import os
import random

import numpy as np
import torch

from phalanx.core import context, settings
from phalanx.core.settings import RunSettings


def seed_everything(seed: int, rank: int) -> None:
    mixed = seed * 1_000_003 + rank
    random.seed(mixed)
    np.random.seed(mixed % 2**32)
    torch.manual_seed(mixed)


def seed_this_worker() -> None:
    """Called when a launched script imports Phalanx, before it builds its model."""
    inside = context.current()
    variables = inside.environment if inside else os.environ
    chosen = RunSettings.from_json(variables.get(settings.SETTINGS, "{}"))
    seed_everything(chosen.seed, int(variables[settings.RANK]))
