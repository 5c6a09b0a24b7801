"""Describes NVIDIA's GPUs from what the driver and ``nvidia-smi`` report."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

FACTS = ("name", "memory.total", "power.draw")
READINGS = ("index", "utilization.gpu", "memory.used", "power.draw")
DRIVER = "/proc/driver/nvidia/gpus"
DEVICES = "/dev"
_FORMAT = "--format=csv,noheader,nounits"
_SECONDS = 15
_MEBIBYTE = 1 << 20


def count_gpus(driver: str = DRIVER, devices: str = DEVICES) -> int:
    """Count the GPUs that our child processes see; this is fast if the driver lists them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    named = None if visible is None else _named_devices(visible)
    if named == 0:
        return 0
    present = _listed_by_driver(Path(driver), Path(devices))
    if present is None:
        present = len(gpu_facts())
    return present if named is None else min(named, present)


def _named_devices(visible: str) -> int:
    """The named devices that CUDA uses: those before the first empty or negative name."""
    names = [n.strip() for n in visible.split(",")]
    return next((i for i, n in enumerate(names) if not n or n.startswith("-")), len(names))


def _listed_by_driver(driver: Path, devices: Path) -> int | None:
    """Count the driver's GPUs that have a device file here; a container has only its own."""
    try:
        listed = sum(1 for folder in driver.iterdir() if folder.is_dir())
    except OSError:
        return None
    ours = sum(1 for node in devices.glob("nvidia[0-9]*") if node.name[6:].isdecimal())
    return min(listed, ours) if ours else listed


def gpu_facts() -> list[dict[str, Any]]:
    """Model, bytes of memory and watts of each."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    try:
        answer = subprocess.run(
            [tool, "--query-gpu=" + ",".join(FACTS), _FORMAT],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return facts_of(answer.stdout.decode(errors="replace"))


def facts_of(text: str) -> list[dict[str, Any]]:
    """Reads one line for each GPU; a figure that it does not have is unknown."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(FACTS):
            memory, watts = _number(cells[1]), _number(cells[2])
            found.append(
                {
                    "name": cells[0][:100],
                    "memory": None if memory is None else int(memory * _MEBIBYTE),
                    "watts": watts,
                }
            )
    return found


class GpuReadings:
    """Reads from one ``nvidia-smi`` that runs all the time, because it takes seconds to start."""

    def __init__(self) -> None:
        self._latest: dict[str, list[float | None]] = {}
        self._child: subprocess.Popen[bytes] | None = None
        tool = shutil.which("nvidia-smi")
        if tool is None:
            return
        try:
            self._child = subprocess.Popen(
                [tool, "--query-gpu=" + ",".join(READINGS), _FORMAT, "-l", "1"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            return
        threading.Thread(target=self._read, args=(self._child,), daemon=True).start()

    def _read(self, child: subprocess.Popen[bytes]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            self.take(line.decode(errors="replace"))

    def take(self, line: str) -> None:
        """Takes the line of one GPU."""
        index, *cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(READINGS) - 1 and index.isdigit():
            self._latest[index] = [_number(cell) for cell in cells]

    def figures(self) -> dict[str, Any]:
        """Mean use in percent, bytes and watts of all together; ``None`` is unknown."""
        rows = list(self._latest.values())
        use, memory, watts = ([x for x in column if x is not None] for column in columns(rows))
        return {
            "gpu_percent": sum(use) / len(use) if use else None,
            "gpu_memory_bytes": int(sum(memory) * _MEBIBYTE) if memory else None,
            "gpu_watts": sum(watts) if watts else None,
        }

    def stop(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None


def columns(rows: list[list[float | None]]) -> list[list[float | None]]:
    return [[row[place] for row in rows] for place in range(len(READINGS) - 1)]


def _number(cell: str) -> float | None:
    """``[N/A]`` is unknown."""
    try:
        return float(cell)
    except ValueError:
        return None
