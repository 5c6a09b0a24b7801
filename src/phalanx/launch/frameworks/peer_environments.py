"""The systems that ``compare`` runs beside Phalanx: the packages of each, and a Python with them.

An environment is made on first use, kept in the user's cache under a name that comes from its
list of requirements, and used offline from then on.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from phalanx.agent.frames import RequestProblem
from phalanx.agent.ownership import check, is_our_tree
from phalanx.core.errors import InputError, MachineError
from phalanx.core.files import cache_home
from phalanx.core.registry import did_you_mean
from phalanx.core.settings import KERAS_SYSTEMS, OURS, SPARK_ESTIMATOR, SPARK_SYSTEM
from phalanx.core.terminal import Say
from phalanx.launch.frameworks.framework import (
    JAX,
    KERAS,
    MIRRORED,
    PARAMETER_SERVER,
    SPARK,
    TENSORFLOW,
    TORCH,
    Framework,
)

JAX_PACKAGES = ("keras==3.15.*", "jax==0.10.*")
TENSORFLOW_PACKAGES = ("tensorflow==2.21.*", "tf-keras==2.21.*")
"""The packages; tf_keras is there because Keras 3 cannot train under MultiWorkerMirrored."""
TFDS_PACKAGES = ("tensorflow-datasets==4.9.*", "importlib-resources")
"""For scripts that import tensorflow_datasets, which needs the second but does not declare it."""
VARIABLE = "PHALANX_TF_ENV"
"""The variable that names the folder of an environment with TensorFlow, used unchanged."""
LIMIT = 1800.0
_MODULES = {TENSORFLOW: ("tensorflow", "tf_keras"), JAX: ("keras", "jax")}
_REQUIRED = {TENSORFLOW: TENSORFLOW_PACKAGES, JAX: JAX_PACKAGES}
_MARK = "phalanx-requirements.txt"


@dataclass(frozen=True)
class PeerSystem:
    """A system that ``compare --systems`` knows."""

    system: str
    framework: str
    suffix: str
    """The suffix of the script beside ``NAME.py`` that trains the same model."""

    @property
    def requirements(self) -> tuple[str, ...]:
        return _REQUIRED.get(self.framework, ())


PEERS = {
    peer.system: peer
    for peer in (
        PeerSystem("torch-ddp", TORCH, ".ddp.py"),
        PeerSystem(MIRRORED, TENSORFLOW, ".keras.py"),
        PeerSystem(PARAMETER_SERVER, TENSORFLOW, ".keras.py"),
        PeerSystem("jax-dp", JAX, ".jax.py"),
        PeerSystem(SPARK_ESTIMATOR, SPARK, ".spark.py"),
        *(PeerSystem(name, KERAS, ".fit.py") for name in KERAS_SYSTEMS),
    )
}


def peer_of(system: str) -> PeerSystem:
    if system not in PEERS:
        names = [OURS, SPARK_SYSTEM, *PEERS]
        raise InputError(f"unknown system '{system}'", did_you_mean(system, names))
    return PEERS[system]


def sibling_of(script: Path, peer: PeerSystem) -> Path:
    """Return the peer's script beside ``script``: ``mnist_mlp.keras.py`` for ``mnist_mlp.py``."""
    found = script.with_name(script.stem + peer.suffix)
    if not found.is_file():
        raise InputError(
            f"{peer.system} needs a script of its own, but there is no {found}",
            "Write it, or leave the system out.",
        )
    return found


def python_of(framework: Framework) -> Path:
    """Return the path of this machine's Python for the framework, even if it does not exist yet."""
    if _is_ours(framework):
        return Path(sys.executable)
    named = _named(framework)
    ours = f"{framework.name}-{hashlib.sha256(_content(framework).encode()).hexdigest()[:12]}"
    folder = Path(named).expanduser() if named else cache_home() / "peers" / ours
    return folder / "bin" / "python"


def environment_for(framework: Framework, say: Say) -> Path:
    """Return the Python of the framework's environment; make the environment if it is missing."""
    python = python_of(framework)
    named = _named(framework)
    if _is_ours(framework) or named:
        # Only look for the packages, because importing them takes seconds.
        code = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
        words = [str(python), "-c", code, *_MODULES.get(framework.name, ())]
        if not (python.exists() and subprocess.run(words, timeout=60.0).returncode == 0):
            raise InputError(
                f"{named} has no {' and '.join(_MODULES[framework.name])}",
                f"Install it there, or unset {VARIABLE}.",
            )
        return python
    folder, content = python.parents[1], _content(framework)
    with _alone(folder):
        if not (_marked(folder, content) and python.exists() and is_our_tree(folder)):
            say(f"creating an environment for {framework.name} in {folder} (once)")
            _make(folder, framework.requirements)
            (folder / _MARK).write_text(content, encoding="utf-8")
    return python


def _named(framework: Framework) -> str | None:
    return os.environ.get(VARIABLE) if framework.name == TENSORFLOW else None


def _is_ours(framework: Framework) -> bool:
    """Whether this Python has the framework, and the user has named no other environment."""
    modules = _MODULES.get(framework.name, ())
    if _named(framework):
        return False
    return all(importlib.util.find_spec(module) is not None for module in modules)


def _content(framework: Framework) -> str:
    major, minor = sys.version_info[:2]
    return "\n".join([f"# Python {major}.{minor}", *framework.requirements]) + "\n"


def _marked(folder: Path, content: str) -> bool:
    """Whether the environment is complete and was made from the requirements in ``content``."""
    mark = folder / _MARK
    return mark.is_file() and mark.read_text(encoding="utf-8") == content


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock an environment's folder, so that two commands do not both make it."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        check(folder.parent)
    except RequestProblem as problem:
        raise InputError(
            f"{problem.cause}, and programs would be run from {folder.parent}",
            "Take away their right to write (chmod go-w), or set XDG_CACHE_HOME to another folder.",
        ) from None
    with folder.with_suffix(".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(folder: Path, requirements: list[str]) -> None:
    python = folder / "bin" / "python"
    try:
        if folder.exists():
            shutil.rmtree(folder)  # fails for another user's files, which must not run
        _call([sys.executable, "-m", "venv", str(folder)])
        _call([str(python), "-m", "pip", "install", "--quiet", *requirements])
    except (OSError, subprocess.SubprocessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        raise MachineError(
            f"cannot create an environment with {', '.join(requirements)}: {said[-1]}",
            f"Check the network, or set {VARIABLE} to an environment that has them.",
        ) from error


def _call(words: list[str]) -> None:
    subprocess.run(words, check=True, timeout=LIMIT, capture_output=True, text=True, umask=0o022)
