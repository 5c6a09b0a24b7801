"""Describes to launchers the scripts that use another framework's distributed training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from phalanx.core.settings import KERAS_SYSTEMS, SPARK_ESTIMATOR

TORCH, TENSORFLOW, JAX, KERAS, SPARK = "torch", "tensorflow", "jax", "keras", "spark"
FRAMEWORKS = (TORCH, TENSORFLOW, JAX, KERAS)
"""Values of ``--framework``. For a ``keras`` script Phalanx replaces ``model.fit``."""
KERAS_NAMES = (KERAS, *KERAS_SYSTEMS)
"""Scripts whose ``model.fit`` Phalanx replaces, also with their backend named."""
CHIEF, WORKER, SERVER, EVALUATOR = "chief", "worker", "ps", "evaluator"
"""TensorFlow's names of tasks. Processes of torch are all workers."""
MIRRORED, PARAMETER_SERVER = "tf-mwms", "tf-ps"
ONE_MACHINE = {"MirroredStrategy": "tf-mirrored", "CentralStorageStrategy": "tf-central-storage"}
"""Strategies of TensorFlow that use all GPUs of one machine, by one process."""


class Framework(msgspec.Struct, frozen=True, kw_only=True):
    """The framework of a script, and how its processes are started; part of ``launch.json``."""

    name: str
    system: str
    """The name in reports: torch, torch-ddp, tf-mwms, tf-ps, tf-mirrored, jax-dp."""
    roles: dict[str, int] = {}
    """How many processes of each role were asked for; empty: the number of machines decides."""
    servers: int = 0
    """How many parameter servers have machines of their own."""
    python: str | None = None
    """The Python of this machine that has the framework; ``None``: the one that runs Phalanx."""
    requirements: list[str] = []
    """The packages of an environment for the framework; empty: it needs none of its own."""
    variables: dict[str, str] = {}
    """Variables that every process gets."""

    @property
    def has_servers(self) -> bool:
        return self.system == PARAMETER_SERVER

    @property
    def is_alone(self) -> bool:
        """Whether the script runs as one process on one machine."""
        return self.system in (*ONE_MACHINE.values(), SPARK_ESTIMATOR)


@dataclass(frozen=True)
class Process:
    """A process of a run, its machine and its address."""

    rank: int
    machine: str
    address: str
    """The address by which the others reach this process."""
    local_index: int
    locals: int
    """How many processes of the run are on this machine."""
    port: int
    """A free port of the machine, for this process only."""
    threads: int = 1
    device: str = "cpu"
    interface: str | None = None
    """The network device of ``address``, if the pool names it."""
    role: str = WORKER


@dataclass(frozen=True)
class Places:
    """All processes of a run, in the order of their ranks."""

    processes: tuple[Process, ...]
    run: str

    @property
    def machines(self) -> list[str]:
        return list(dict.fromkeys(process.machine for process in self.processes))

    def with_role(self, role: str) -> list[Process]:
        return [process for process in self.processes if process.role == role]


Variables = Mapping[int, dict[str, str]]
"""Environment variables by rank."""
