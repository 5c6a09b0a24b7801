"""A cluster of Ray as the controller reaches it: connecting, and its nodes."""

from __future__ import annotations

import importlib
import importlib.util
import os
import secrets
import signal
from pathlib import Path
from typing import Any

from phalanx.core.errors import InputError, MachineError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.cluster.node import LOOPBACK
from phalanx.launch.cluster.seats import cluster_folder, write_private

_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"
_LOOPBACK_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


def check_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        raise InputError("Ray is not installed here", "Run: pip install ray")


def connect(address: str, paths: RunPaths) -> tuple[Any, Path | None]:
    """Ray, connected to the cluster at ``address``; or to one of our own, with its token's file."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    own: dict[str, Any] = {"_node_ip_address": LOOPBACK, "include_dashboard": False}
    # All of these are read when Ray is imported.
    chosen, token = {"RAY_USAGE_STATS_ENABLED": "0"}, None
    if not address:
        # Else Ray replaces loopback by an address that others reach.
        chosen[_LOOPBACK_ONLY] = "0"
    if not address and _MODE not in os.environ:
        # Loopback is open to all users of this machine, and Ray's own token file readable by them.
        token = cluster_folder(paths) / "ray.token"
        write_private(token, secrets.token_hex(32))
        chosen |= {_MODE: "token", _TOKEN: str(token.absolute())}
    os.environ |= {name: os.environ.get(name, value) for name, value in chosen.items()}
    ray: Any = importlib.import_module("ray")
    try:
        ray.init(
            address=address or "local",
            log_to_driver=False,
            configure_logging=False,
            **({} if address else own),
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        if token is not None:
            token.unlink()
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MachineError(
            f"cannot connect to Ray at '{address or 'local'}': {said}",
            "Check it: ray status; or leave out --ray-address for one on this machine.",
        ) from None
    finally:
        for number, handler in kept.items():  # Ctrl-C stays the controller's to answer
            signal.signal(number, handler)
    return ray, token


def address_on(ray: Any, group: Any, rank: int) -> str:
    """Of the node that Ray has chosen for a bundle."""
    table = importlib.import_module("ray.util.placement_group").placement_group_table(group)
    chosen = table["bundles_to_node_id"][rank]
    return next(str(n["NodeManagerAddress"]) for n in ray.nodes() if n["NodeID"] == chosen)
