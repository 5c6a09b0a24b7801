"""A Python environment of its own for TensorFlow, which the project itself never needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

VARIABLE = "PHALANX_TF_ENV"
PACKAGES = ("tensorflow==2.21.*", "tf-keras==2.21.*")
LIMIT = 900.0


def tensorflow_python() -> tuple[Path | None, str]:
    """The environment's Python, made when it is missing; or none, and the reason."""
    default = Path.home() / ".cache" / "phalanx" / "peers" / "tf"
    folder = Path(os.environ.get(VARIABLE) or default)
    python = folder / "bin" / "python"
    if _has_it(python):
        return python, ""
    print(f"installing TensorFlow into {folder}", file=sys.stderr, flush=True)
    try:
        _call([sys.executable, "-m", "venv", str(folder)])
        _call([str(python), "-m", "pip", "install", "--quiet", *PACKAGES])
    except (OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        return None, said.strip()[-400:]
    return (python, "") if _has_it(python) else (None, "it is installed, but cannot be imported")


def _has_it(python: Path) -> bool:
    """Looks for the packages only: importing them takes seconds."""
    code = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
    words = [str(python), "-c", code, "tensorflow", "tf_keras"]
    return python.exists() and subprocess.run(words, timeout=60.0).returncode == 0


def _call(words: list[str]) -> None:
    subprocess.run(words, check=True, timeout=LIMIT, capture_output=True, text=True)
