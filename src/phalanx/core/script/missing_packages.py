"""Reports in one line that this Python lacks a package which Phalanx itself needs.

Imports only the standard library, because it runs where other imports have failed.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import traceback
from pathlib import Path

from phalanx.core.errors import MachineError

_HERE = str(Path(__file__).parents[2]) + os.sep
_LIBRARIES = ("<frozen ", *{sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})
_INSTALLED_AS = {"ruamel": "ruamel.yaml"}
"""The names of packages on PyPI, by the name to import, for those where the two differ."""


def missing_package(error: ModuleNotFoundError) -> MachineError | None:
    """The message for ``error`` if Phalanx, or a package that it uses, imported what is missing.

    ``None`` if a script imported it: then the user sees the script's own traceback.
    """
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    ours = [number for number, file in enumerate(files) if file.startswith(_HERE)]
    asked = files[ours[-1] + 1 :] if ours else ["a script"]
    name = (error.name or "").partition(".")[0]
    if name in ("", "phalanx") or not all(file.startswith(_LIBRARIES) for file in asked):
        return None
    package = _INSTALLED_AS.get(name, name)
    keras = "/keras/" in "".join(asked[-1:]) and name in ("tensorflow", "jax")
    who, other = ("Keras", "Set KERAS_BACKEND=torch. Or i") if keras else ("Phalanx", "I")
    return MachineError(
        f"{who} needs the package '{package}', which {sys.executable} does not have",
        f"{other}nstall it: {sys.executable} -m pip install {package}",
    )


def tell_missing(error: ModuleNotFoundError) -> int:
    """Write the message where the controller looks for a worker's error; return the exit code."""
    found = missing_package(error)
    if found is None:
        raise error
    folder, rank = os.environ.get("PHALANX_RUN"), os.environ.get("PHALANX_RANK")
    print(found, file=sys.stderr, flush=True)
    if folder and rank:
        (Path(folder) / "logs" / f"rank-{rank}.traceback").write_text(f"{found}\n")
    return found.exit_code
