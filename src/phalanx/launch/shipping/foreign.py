"""The Python of a machine for another framework's script: one that has it, or one that is made."""

from __future__ import annotations

import contextlib
import re

from phalanx.core.errors import MachineError
from phalanx.launch.frameworks import Framework
from phalanx.launch.frameworks.peer_environments import python_of
from phalanx.launch.shipping.environment import PythonChoice, inspect
from phalanx.launch.shipping.requirements import PipStep, Recipe
from phalanx.launch.shipping.send import ShippingLink

_NAME = re.compile(r"[A-Za-z0-9._-]+")


async def choose_foreign(link: ShippingLink, framework: Framework) -> PythonChoice:
    """First the blueprint's Python, then where this machine has it, at last a new environment."""
    machine, needed = link.machine, _names(framework)
    named = [machine.python] if "python" in machine.model_fields_set else []
    for python in (*named, framework.python or str(python_of(framework))):
        with contextlib.suppress(MachineError):  # there is no such Python: the next one
            found = await inspect(link, python, needed)
            if all(name in found.packages for name in needed):
                return PythonChoice(found)
    recipe = Recipe(framework.name, (PipStep("\n".join(framework.requirements) + "\n", ""),))
    return PythonChoice(await inspect(link, machine.python, needed), recipe, needed)


def _names(framework: Framework) -> list[str]:
    found = (_NAME.match(line) for line in framework.requirements)
    return [match[0] for match in found if match]
