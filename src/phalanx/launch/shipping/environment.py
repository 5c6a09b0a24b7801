"""Chooses which Python the workers of a machine get: named, made for the project, or found."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from phalanx.core.errors import MachineError
from phalanx.core.files import cache_home
from phalanx.launch.frameworks.framework import Framework
from phalanx.launch.frameworks.peer_environments import python_of
from phalanx.launch.link.agent_link import AgentLink
from phalanx.launch.link.progress_notes import telling
from phalanx.launch.shipping.requirements import WORKER_PACKAGES, PipStep, Recipe, read_recipe
from phalanx.launch.shipping.send import (
    Progress,
    answers_wrongly,
    ignore_progress,
    read_answer,
    ship,
)
from phalanx.launch.shipping.versions import OLDEST, Inspection
from phalanx.launch.shipping.wheels import fetch_wheels

INSPECT_SECONDS = 90.0
MAKE_SECONDS = 3700.0
"""Seconds that pip may be silent, as it is while it downloads large wheels or builds one; the agent
itself ends a pip that takes an hour."""


class Made(msgspec.Struct):
    """The Python of an environment, or pip's message when it reached no package index."""

    python: str | None = None
    offline: str | None = None


@dataclass(frozen=True)
class PythonChoice:
    """A Python that a machine has, or one that is made from it by ``recipe``."""

    base: Inspection
    recipe: Recipe | None = None
    packages: Sequence[str] = WORKER_PACKAGES
    """Packages whose versions are asked for."""

    @property
    def digest(self) -> str:
        assert self.recipe is not None
        return self.recipe.digest(self.base.version, self.base.platform)

    def executable(self, link: AgentLink) -> str:
        """Return the path of this Python, also before it is made: ``digest`` names its folder."""
        if self.recipe is None:
            return self.base.executable
        return f"{link.folder}/environments/{self.digest}/bin/python"

    async def prepare(self, link: AgentLink, progress: Progress = ignore_progress) -> Inspection:
        if self.recipe is None:
            return self.base
        python = await _make(link, self, progress)
        if python != self.executable(link):
            raise answers_wrongly(link)
        return await inspect(link, python, self.packages)


async def choose_python(link: AgentLink, root: Path) -> PythonChoice:
    """Choose the Python that the machine's workers run, for the project at ``root``."""
    machine = link.machine
    base = await inspect(link, machine.interpreter)
    if machine.is_here or "python" in machine.model_fields_set:
        return PythonChoice(base)
    # A Python too old for us is reported when versions are compared.
    return PythonChoice(base, read_recipe(root) if base.minor >= OLDEST else None)


async def inspect(
    link: AgentLink, python: str, packages: Sequence[str] = WORKER_PACKAGES, *, kept: bool = False
) -> Inspection:
    answer = await link.ask(
        "inspect",
        timeout=INSPECT_SECONDS,
        doing=lambda: f"checking {python}",
        python=python,
        packages=list(packages),
        kept=kept,
    )
    return read_answer(link, answer, Inspection)


async def _make(link: AgentLink, choice: PythonChoice, progress: Progress) -> str:
    """Let pip make the environment there, with wheels sent from here if it reaches no index."""
    assert choice.recipe is not None
    made = await _ask(link, choice, None)
    if made.python is None:
        async with telling(link.waiting.say, lambda: f"fetching packages for {link.machine.name}"):
            folder, manifest = await fetch_wheels(choice.recipe, choice.base, link.machine.name)
        wheels = await ship(link, manifest, folder, "wheels", progress)
        made = await _ask(link, choice, wheels)
    if made.python is None:
        raise MachineError(
            f"{link.machine.name} cannot create a virtual environment: {made.offline}",
            "Set 'python' in the blueprint to a Python that has what the project needs.",
        )
    return made.python


async def _ask(link: AgentLink, choice: PythonChoice, wheels: str | None) -> Made:
    answer = await link.ask(
        "environment",
        timeout=MAKE_SECONDS,
        doing=lambda: "creating a virtual environment",
        python=choice.base.executable,
        digest=choice.digest,
        steps=choice.recipe.steps if choice.recipe else (),
        wheels=wheels,
    )
    return read_answer(link, answer, Made)


_NAME = re.compile(r"[A-Za-z0-9._-]+")


async def choose_foreign(link: AgentLink, framework: Framework) -> PythonChoice:
    """Choose a Python with the framework: the blueprint's, else this machine's, else a new one."""
    machine, lines = link.machine, framework.requirements
    needed = [found[0] for line in lines if (found := _NAME.match(line))]
    named = [machine.python] if "python" in machine.model_fields_set else []
    for python in (*named, framework.python or str(python_of(framework))):
        with contextlib.suppress(MachineError):  # this Python does not exist there: try the next
            has = await inspect(link, python, needed, kept=cache_home() in Path(python).parents)
            if all(name in has.packages for name in needed):
                return PythonChoice(has)
    recipe = Recipe(framework.name, (PipStep("\n".join(framework.requirements) + "\n", ""),))
    return PythonChoice(await inspect(link, machine.python, needed), recipe, needed)
