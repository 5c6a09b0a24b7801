"""``TF_CONFIG`` for every process of a ``tf.distribute`` script, and which kind of script it is."""

from __future__ import annotations

import ast
import json

from phalanx.core.hosts_settings import endpoint
from phalanx.launch.frameworks.framework import (
    CHIEF,
    MIRRORED,
    PARAMETER_SERVER,
    SERVER,
    WORKER,
    Places,
    Process,
)

_OF_SERVERS = {"ParameterServerStrategy", "ParameterServerStrategyV2", "ClusterCoordinator"}


def environment(places: Places) -> dict[int, dict[str, str]]:
    # {"worker": ["address:port", …]}, with chief and ps where there are such.
    found = {
        role: [endpoint(one.address, one.port) for one in places.with_role(role)]
        for role in (CHIEF, WORKER, SERVER)
    }
    cluster = {role: endpoints for role, endpoints in found.items() if endpoints}
    return {process.rank: _variables(process, places, cluster) for process in places.processes}


def system_of(source: bytes | str) -> str:
    """By what the script names in its code; one that cannot be read is the usual kind."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return MIRRORED
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
                if name.rpartition(".")[2] in _OF_SERVERS:
                    return PARAMETER_SERVER
    return MIRRORED


def _variables(process: Process, places: Places, cluster: dict[str, list[str]]) -> dict[str, str]:
    index = places.with_role(process.role).index(process)
    task = {"type": process.role, "index": index}
    on_gpu = process.device.startswith("cuda:")
    return {
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": task}),
        "TF_NUM_INTRAOP_THREADS": str(process.threads),
        "OMP_NUM_THREADS": str(process.threads),
        # A process takes all the memory of every GPU that it sees.
        "CUDA_VISIBLE_DEVICES": process.device.removeprefix("cuda:") if on_gpu else "-1",
    }
