"""Which Python the workers of a machine get: named, made for the project, or what is there."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from phalanx.core.errors import MachineError
from phalanx.launch.run.progress_notes import telling
from phalanx.launch.shipping.requirements import WORKER_PACKAGES, Recipe, read_recipe
from phalanx.launch.shipping.send import Progress, ShippingLink, ignore_progress, read_answer, ship
from phalanx.launch.shipping.versions import OLDEST, Inspection
from phalanx.launch.shipping.wheels import fetch_wheels

INSPECT_SECONDS = 90.0
MAKE_SECONDS = 3700.0
"""Since pip last said something. It loads a large wheel, and builds one, without a word; the
machine itself ends a pip that takes an hour."""


class Made(msgspec.Struct):
    """The Python of an environment, or why pip could not get what it needs."""

    python: str | None = None
    offline: str | None = None


async def prepare_environment(
    link: ShippingLink, root: Path, progress: Progress = ignore_progress
) -> Inspection:
    """The Python that the machine's workers shall run, for the project at ``root``."""
    machine = link.machine
    if "python" in machine.model_fields_set:
        return await inspect(link, machine.python)
    if machine.is_here:
        return await inspect(link, sys.executable)
    recipe = read_recipe(root)
    base = await inspect(link, machine.python)
    if recipe is None or base.minor < OLDEST:  # too old for us: said when versions are compared
        return base
    return await inspect(link, await make_environment(link, recipe, base, progress))


async def inspect(
    link: ShippingLink, python: str, packages: Sequence[str] = WORKER_PACKAGES
) -> Inspection:
    answer = await link.ask(
        "inspect",
        timeout=INSPECT_SECONDS,
        doing=lambda: f"looking at {python}",
        python=python,
        packages=list(packages),
    )
    return read_answer(link, answer, Inspection)


async def make_environment(
    link: ShippingLink, recipe: Recipe, base: Inspection, progress: Progress
) -> str:
    """By pip on the machine, with wheels of this one where the machine reaches no index."""
    made = await _ask(link, recipe, base, None)
    if made.python is None:
        async with telling(link.waiting.say, lambda: f"fetching packages for {link.machine.name}"):
            folder, manifest = await fetch_wheels(recipe, base, link.machine.name)
        wheels = await ship(link, manifest, folder, "wheels", progress)
        made = await _ask(link, recipe, base, wheels)
    if made.python is None:
        raise MachineError(
            f"{link.machine.name} cannot make an environment: {made.offline}",
            "Name a 'python' that has what the project needs in the blueprint.",
        )
    return made.python


async def _ask(link: ShippingLink, recipe: Recipe, base: Inspection, wheels: str | None) -> Made:
    answer = await link.ask(
        "environment",
        timeout=MAKE_SECONDS,
        doing=lambda: "making an environment",
        python=base.executable,
        digest=recipe.digest(base.version, base.platform),
        steps=recipe.steps,
        wheels=wheels,
    )
    return read_answer(link, answer, Made)
