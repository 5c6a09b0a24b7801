"""The systems of ``python -m benchmarks hosts-steps``, each as processes on lab machines.

Two machines compute, each on a core of its own; servers and coordinators that a system keeps
apart are on the third.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.hosts_teams import Keys, Place
from phalanx.lab.lab import Lab

COMPUTE, APART = ("m1", "m2"), "m3"
SCRIPT = "benchmarks/scripts/hosts_steps.py"
Placed = tuple[Sequence[Place], int | None]


@dataclass(frozen=True)
class Systems:
    """Makes the processes of a system; ``tensorflow`` is the Python that has it."""

    lab: Lab
    keys: Keys
    cores: Sequence[int | None]
    tensorflow: Path | None

    def makers(self) -> dict[str, Callable[[], Placed]]:
        """By name: the processes, and how many of them are told to go (``None``: all)."""
        ours: dict[str, Callable[[], Placed]] = {
            "bare loop": lambda: (self._torch("bare"), None),
            "allreduce": lambda: (self._phalanx("allreduce"), None),
            "async": lambda: (self._phalanx("async", APART), len(COMPUTE)),
            "DDP": lambda: (self._torch("ddp"), None),
        }
        theirs: dict[str, Callable[[], Placed]] = {
            "MultiWorkerMirrored": lambda: (self._mirrored("fit", 29600), None),
            "MultiWorkerMirrored, compiled loop": lambda: (self._mirrored("loop", 29610), None),
            "ParameterServer": lambda: (self._server("fit", 29700), 1),
            "ParameterServer, compiled loop": lambda: (self._server("loop", 29710), 1),
        }
        return {**ours, **(theirs if self.tensorflow else {})}

    def _phalanx(self, strategy: str, server: str | None = None) -> list[Place]:
        return self.keys.team(SCRIPT, COMPUTE, strategy, server=server, cores=self.cores)

    def _torch(self, kind: str) -> list[Place]:
        shared = {
            "GLOO_SOCKET_IFNAME": "eth0",
            "MASTER_ADDR": self._address(COMPUTE[0]),
            "MASTER_PORT": "29500",
            "WORLD_SIZE": str(len(COMPUTE)),
        }
        words = [sys.executable, "-m", "benchmarks.peers.torch_steps", kind]
        return [
            Place(machine, words, {**shared, "RANK": str(rank)}, self.cores[rank])
            for rank, machine in enumerate(COMPUTE)
        ]

    def _mirrored(self, kind: str, port: int) -> list[Place]:
        cluster = {"worker": [f"{self._address(machine)}:{port}" for machine in COMPUTE]}
        return [
            self._tensorflow("tf_mirrored", kind, cluster, "worker", rank)
            for rank in range(len(COMPUTE))
        ]

    def _server(self, kind: str, port: int) -> list[Place]:
        apart = self._address(APART)
        cluster = {
            "chief": [f"{apart}:{port}"],
            "worker": [f"{self._address(machine)}:{port}" for machine in COMPUTE],
            "ps": [f"{apart}:{port + 1}"],
        }
        tasks = [(task, i) for task, places in cluster.items() for i in range(len(places))]
        return [self._tensorflow("tf_server", kind, cluster, task, i) for task, i in tasks]

    def _tensorflow(
        self, module: str, kind: str, cluster: dict[str, list[str]], task: str, index: int
    ) -> Place:
        config = json.dumps({"cluster": cluster, "task": {"type": task, "index": index}})
        works = task == "worker"
        return Place(
            COMPUTE[index] if works else APART,
            [str(self.tensorflow), "-m", f"benchmarks.peers.{module}", kind],
            {"TF_CONFIG": config},
            self.cores[index] if works else None,
        )

    def _address(self, machine: str) -> str:
        return self.lab.machine(machine).address
