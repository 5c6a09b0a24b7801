"""The environment with TensorFlow that ``phalanx compare --systems`` uses too."""

from __future__ import annotations

import sys
from pathlib import Path

from phalanx.core.errors import PhalanxError
from phalanx.launch.frameworks.framework import MIRRORED, TENSORFLOW, Framework
from phalanx.launch.frameworks.peer_environments import TENSORFLOW_PACKAGES, environment_for


def tensorflow_python() -> tuple[Path | None, str]:
    """The environment's Python, made when it is missing; or none, and the reason."""
    wanted = Framework(name=TENSORFLOW, system=MIRRORED, requirements=list(TENSORFLOW_PACKAGES))
    try:
        return environment_for(wanted, _say), ""
    except PhalanxError as error:
        return None, error.cause


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
