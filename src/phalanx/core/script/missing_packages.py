"""A package that Phalanx itself needs and this Python has not, as one line.

Standard library only: it is needed where nothing else could be imported.
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
"""Where a package is not called what it is imported as."""


def missing_package(error: ModuleNotFoundError) -> MachineError | None:
    """What to say of ``error`` if Phalanx, or a package that it uses, asked for what is missing.

    ``None`` where a script did: that is the script's own traceback.
    """
    files = [frame.filename for frame in traceback.extract_tb(error.__traceback__)]
    ours = [number for number, file in enumerate(files) if file.startswith(_HERE)]
    asked = files[ours[-1] + 1 :] if ours else ["a script"]
    name = (error.name or "").partition(".")[0]
    if name in ("", "phalanx") or not all(file.startswith(_LIBRARIES) for file in asked):
        return None
    package = _INSTALLED_AS.get(name, name)
    return MachineError(
        f"Phalanx needs the package '{package}', which {sys.executable} does not have",
        f"Install it: {sys.executable} -m pip install {package}",
    )


def tell_missing(error: ModuleNotFoundError) -> int:
    """Tells what a worker misses, where its controller looks for last words; the exit code."""
    found = missing_package(error)
    if found is None:
        raise error
    folder, rank = os.environ.get("PHALANX_RUN"), os.environ.get("PHALANX_RANK")
    print(found, file=sys.stderr, flush=True)
    if folder and rank:
        (Path(folder) / "logs" / f"rank-{rank}.traceback").write_text(f"{found}\n")
    return found.exit_code
