"""Workers as processes of Ray actors, one bundle of a placement group each.

In an existing cluster, nothing new listens; a cluster of our own listens on loopback.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import secrets
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phalanx.core.errors import InputError, MachineError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.terminal import Say
from phalanx.launch.cluster.node import LOOPBACK
from phalanx.launch.cluster.seat import WorkerSeat
from phalanx.launch.cluster.seat_launcher import SeatLauncher
from phalanx.launch.cluster.seats import SeatLost, cluster_folder, on_cluster, write_private
from phalanx.launch.launcher import Job

_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"
_LOOPBACK_ONLY = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


class RayLauncher(SeatLauncher):
    """Starts workers on Ray; its seats are actors."""

    cluster, check = "Ray", "See: ray status"

    def __init__(self) -> None:
        super().__init__()
        self._ray: Any = None
        self._token: Path | None = None
        self._group: Any = None
        self._actors: list[Any] = []

    def open(
        self, job: Job, paths: RunPaths, say: Say, asked: Callable[[], bool], *, dry: bool = False
    ) -> Job:
        check_ray()
        if dry:
            return on_cluster(job, "ray", job.plan.workers)
        self._ray, self._token = connect(job.fleet.cluster, paths)
        nodes = [node for node in self._ray.nodes() if node["Alive"]]
        workers = job.fleet.workers or (job.plan.workers if len(nodes) == 1 else len(nodes))
        cores = int(self._ray.cluster_resources().get("CPU", 0))
        if cores < workers:
            self._disconnect()
            raise InputError(
                f"Ray has {cores} CPU{'s' * (cores != 1)} for {workers} workers",
                f"Use --workers {max(1, cores)}, or add nodes: ray start --address=…",
            )
        say(f"connected to Ray: {len(nodes)} node{'s' * (len(nodes) != 1)}")
        return on_cluster(job, "ray", workers)

    def _place(self, count: int, folder: str, mark: str) -> Iterator[None]:
        ray = self._ray
        placement = importlib.import_module("ray.util.placement_group")
        scheduling = importlib.import_module("ray.util.scheduling_strategies")
        with _heard():
            gpus = 1 if ray.cluster_resources().get("GPU", 0) >= count else 0
            bundle = {"CPU": 1, **({"GPU": 1} if gpus else {})}
            self._group = placement.placement_group([bundle] * count, strategy="SPREAD")
            yield from self._until([self._group.ready()], "Ray has no room yet for all workers")
            seat, table = ray.remote(WorkerSeat), placement.placement_group_table(self._group)
            addresses = {node["NodeID"]: str(node["NodeManagerAddress"]) for node in ray.nodes()}
            for rank in range(count):
                where = scheduling.PlacementGroupSchedulingStrategy(
                    placement_group=self._group, placement_group_bundle_index=rank
                )
                chosen = seat.options(num_cpus=1, num_gpus=gpus, scheduling_strategy=where)
                address = addresses[table["bundles_to_node_id"][rank]]
                self._actors.append(chosen.remote(rank, address, folder, mark))

    def _ask(self, rank: int, method: str, *given: Any) -> Any:
        return getattr(self._actors[rank], method).remote(*given)

    def _answered(self, questions: Sequence[Any]) -> bool:
        found, _ = self._ray.wait(list(questions), num_returns=len(questions), timeout=0)
        return len(found) == len(questions)

    def _answer(self, question: Any, seconds: float = 0.0) -> Any:
        with _heard():
            return self._ray.get(question, timeout=seconds or None)

    def _release(self) -> None:
        if self._ray is None or not self._ray.is_initialized():
            return
        for actor in self._actors:
            self._ray.kill(actor)
        if self._group is not None:
            importlib.import_module("ray.util.placement_group").remove_placement_group(self._group)
        self._disconnect()

    def _disconnect(self) -> None:
        self._ray.shutdown()
        if self._token is not None:
            self._token.unlink(missing_ok=True)


def check_ray() -> None:
    if importlib.util.find_spec("ray") is None:
        raise InputError("Ray is not installed here", "Run: pip install ray")


def connect(address: str, paths: RunPaths) -> tuple[Any, Path | None]:
    """Connect to the cluster at ``address``, or start our own; return Ray and our token's file."""
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    own: dict[str, Any] = {"_node_ip_address": LOOPBACK, "include_dashboard": False}
    # All of these are read when Ray is imported.
    chosen, token = {"RAY_USAGE_STATS_ENABLED": "0"}, None
    if not address:
        # Otherwise Ray replaces loopback by an address that other machines can reach.
        chosen[_LOOPBACK_ONLY] = "0"
    if not address and _MODE not in os.environ:
        # All users of this machine reach loopback, and can read Ray's own token file.
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
            "Check it: ray status; or give --launcher ray for one on this machine.",
        ) from None
    finally:
        for number, handler in kept.items():  # Ctrl-C is for the controller to handle
            signal.signal(number, handler)
    return ray, token


@contextmanager
def _heard() -> Iterator[None]:
    """Turn Ray's errors into ours."""
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith("ray"):
            raise
        raise SeatLost((str(error).strip().splitlines() or [type(error).__name__])[-1]) from None
