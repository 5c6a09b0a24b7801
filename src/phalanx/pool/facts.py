"""What the machine that we run on has, read as an agent reads it, and without importing torch."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from phalanx.agent.machine import facts
from phalanx.agent.machine.gpus import count_gpus


@dataclass(frozen=True)
class Facts:
    """Cores that may be used at once, their numbers, bytes of memory, GPUs."""

    cores: int
    cpu_ids: tuple[int, ...]
    memory: int
    gpus: int
    usable_gpus: int
    """Fewer than ``gpus`` when the installed torch is a CPU build."""


def measure() -> Facts:
    ids = facts.cpu_ids()
    gpus = count_gpus()
    usable = gpus if gpus and torch_knows_gpus() else 0
    return Facts(facts.usable_cores(ids), tuple(ids), facts.memory() or 0, gpus, usable)


def torch_knows_gpus() -> bool:
    """Whether the installed torch is a CUDA build, judged by its files."""
    found = importlib.util.find_spec("torch")
    folders = found.submodule_search_locations if found else None
    return any(
        next((Path(folder) / "lib").glob("*torch_cuda*"), None) is not None
        for folder in folders or ()
    )
