"""Runs unchanged scripts of other frameworks: their variables, and the ranks that end the run.

Pure functions: launchers ask for the variables, the controller for the ranks.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.core.settings import RunSettings
from phalanx.launch.frameworks import jax_scripts, tensorflow_scripts, torch_scripts
from phalanx.launch.frameworks.framework import CHIEF, EVALUATOR, JAX, SPARK, TENSORFLOW, Places

EPOCHS, BATCH, SEED = "PHALANX_EPOCHS", "PHALANX_BATCH", "PHALANX_SEED"
"""Variables with options of the command line, for scripts that read them; the batch is global."""


def environment_of(framework: str, places: Places) -> dict[int, dict[str, str]]:
    """Return the variables of each rank."""
    scripts = {TENSORFLOW: tensorflow_scripts.variables, JAX: jax_scripts.variables}
    variables = scripts.get(framework, torch_scripts.variables)
    processes = () if framework == SPARK else places.processes
    return {process.rank: variables(process, places) for process in processes}


def deciding(roles: Sequence[str]) -> list[int]:
    """Return the ranks that decide the run's end: once they have ended well, the others are ended.

    Where TensorFlow has a chief, its workers and servers never end by themselves, so only the chief
    decides. Otherwise all ranks decide, except an evaluator, which waits for checkpoints.
    """
    chiefs = [rank for rank, role in enumerate(roles) if role == CHIEF]
    return chiefs or [rank for rank, role in enumerate(roles) if role != EVALUATOR]


def settings_variables(settings: RunSettings) -> dict[str, str]:
    """Return variables for options of the command line only: the script has its own defaults."""
    told = {EPOCHS: settings.epochs, BATCH: settings.batch, SEED: settings.seed}
    return {name: str(value) for name, value in told.items() if value is not None}
