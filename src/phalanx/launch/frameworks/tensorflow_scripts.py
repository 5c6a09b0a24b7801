"""Makes ``TF_CONFIG`` for every process of a ``tf.distribute`` script, and finds its strategy."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

from phalanx.core.hosts_settings import endpoint
from phalanx.launch.frameworks.framework import (
    CHIEF,
    EVALUATOR,
    MIRRORED,
    ONE_MACHINE,
    PARAMETER_SERVER,
    SERVER,
    WORKER,
    Places,
    Process,
)

_OF_SERVERS = {"ParameterServerStrategy", "ParameterServerStrategyV2", "ClusterCoordinator"}
_OF_WORKERS = {"MultiWorkerMirroredStrategy"}
_TF_KERAS = "tf.keras"
LEGACY_KERAS = "TF_USE_LEGACY_KERAS"


def system_of(source: bytes | str) -> str:
    """Return the system of the strategy that the code names; the multi-worker one by default."""
    names = _names_in(source)
    if names & _OF_SERVERS:
        return PARAMETER_SERVER
    if names & _OF_WORKERS:
        return MIRRORED
    return next((system for name, system in ONE_MACHINE.items() if name in names), MIRRORED)


def needs_legacy_keras(source: bytes | str) -> bool:
    """Whether the script calls ``fit`` of ``tf.keras`` under a strategy that Keras 3 cannot use.

    False for a script that names ``TF_USE_LEGACY_KERAS``, because it chooses its Keras itself.
    """
    names = _names_in(source)
    fits = {_TF_KERAS, "fit"} <= names and LEGACY_KERAS not in names
    return fits and bool(names & (_OF_SERVERS | _OF_WORKERS))


def unprepared(source: bytes, data: str | None) -> tuple[Path, list[str]]:
    """Return the folder of tensorflow_datasets, and the script's datasets missing in it."""
    given = data or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    folder, found = Path(given).expanduser(), []
    for node in ast.walk(_tree_of(source)):
        match node:
            case ast.Call(func=ast.Attribute(ast.Name("tfds" | "tensorflow_datasets"), "load")):
                named = [each.value for each in node.keywords if each.arg == "name"]
                found += [n.value for n in (node.args or named)[:1] if isinstance(n, ast.Constant)]
    names = [str(name).partition("/")[0].partition(":")[0] for name in found]
    return folder, [name for name in names if not (folder / name).is_dir()]


def _tree_of(source: bytes | str) -> ast.Module:
    """Parse a script; return an empty tree if it cannot be read."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return ast.Module([], [])


def _names_in(source: bytes | str) -> set[str]:
    """Return the names in a script's code, with marks for ``tf.keras`` and ``LEGACY_KERAS``."""
    found: set[str] = set()
    for node in ast.walk(_tree_of(source)):
        match node:
            case ast.Constant(value="TF_USE_LEGACY_KERAS"):
                found.add(LEGACY_KERAS)
            case ast.Name(id=name):
                found.add(name)
            case ast.Attribute(attr=name):
                found |= {name, _TF_KERAS} if name == "keras" else {name}
            case ast.alias(name=name):
                found.add(name.rpartition(".")[2])
                found |= {_TF_KERAS} if name.startswith("tensorflow.keras") else set()
            case ast.ImportFrom(module=str(module), names=names):
                whole = [f"{module}.{each.name}." for each in names]
                if any(name.startswith("tensorflow.keras.") for name in whole):
                    found.add(_TF_KERAS)
    return found


def variables(process: Process, places: Places) -> dict[str, str]:
    # {"worker": ["address:port", …]}, with chief and ps if there are any.
    cluster = {
        role: [endpoint(one.address, one.port) for one in found]
        for role in (CHIEF, WORKER, SERVER, EVALUATOR)
        if (found := places.with_role(role))
    }
    index = places.with_role(process.role).index(process)
    task = {"type": process.role, "index": index}
    on_gpu = process.device.startswith("cuda:")
    return {
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": task}),
        "TF_NUM_INTRAOP_THREADS": str(process.threads),
        "OMP_NUM_THREADS": str(process.threads),
        # A process takes all memory of every GPU that it sees.
        "CUDA_VISIBLE_DEVICES": process.device.removeprefix("cuda:") if on_gpu else "-1",
    }
