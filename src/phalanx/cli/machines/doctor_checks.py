"""The checks of ``doctor``: each tests one thing of this machine, by using it where possible."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from phalanx.core import words
from phalanx.core.run_folder.run_paths import runs_home
from phalanx.pool.here import measure

CPU_INFO = Path("/proc/cpuinfo")
LEAST_PYTHON = (3, 11)
LITTLE_MEMORY = 2 * 1024**3
PATIENCE_SECONDS = 120
# Another process imports torch and reports on it: the command line itself never imports torch.
ASK_TORCH = (
    "import json, torch; print(json.dumps([torch.__version__, torch.cuda.is_available(), "
    "[torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]]))"
)


@dataclass(frozen=True)
class HealthCheck:
    """The result of one check; ``status`` is ok, warn or fail."""

    name: str
    status: str
    found: str
    remedy: str = ""


Check = Callable[[], HealthCheck]


def examine(check: Check) -> HealthCheck:
    """Return the result of ``check``; an exception in it counts as a failed check."""
    try:
        return check()
    except Exception as error:
        name = check.__name__.replace("_", " ")
        return HealthCheck(name, "fail", f"{type(error).__name__}: {error}", "Report this.")


def system() -> HealthCheck:
    found = f"{platform.system()} {platform.release()}, {platform.machine()}"
    status = "ok" if sys.platform == "linux" else "warn"
    return HealthCheck("system", status, found, "This version is tested on Linux only.")


def python() -> HealthCheck:
    status = "ok" if sys.version_info >= LEAST_PYTHON else "fail"
    wanted = ".".join(map(str, LEAST_PYTHON))
    return HealthCheck("python", status, platform.python_version(), f"Use {wanted} or newer.")


def torch() -> HealthCheck:
    """Import torch in another process, and list the GPUs that it can use."""
    try:
        answer = subprocess.run(
            [sys.executable, "-c", ASK_TORCH],
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=True,
        )
    except subprocess.TimeoutExpired:
        slow = f"did not import within {PATIENCE_SECONDS} s"
        return HealthCheck("torch", "fail", slow, "Check the load of disk and machine.")
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["it cannot be imported"])[-1]
        return HealthCheck("torch", "fail", last, "Install it: pip install torch")
    version, has_gpu, names = json.loads(answer.stdout.splitlines()[-1])
    return HealthCheck("torch", "ok", f"{version}, {', '.join(names) if has_gpu else 'CPU only'}")


def cores() -> HealthCheck:
    facts = measure()
    present = os.cpu_count() or facts.cores
    found = f"{facts.cores}" + (f" usable of {present}" if facts.cores < present else "")
    remedy = "Use a machine with two cores or more: here two workers would share one core."
    return HealthCheck("cores", "ok" if facts.cores >= 2 else "warn", found, remedy)


def gpus() -> HealthCheck:
    facts = measure()
    if facts.gpus > facts.usable_gpus:
        remedy = "Install a CUDA build from pytorch.org: the installed torch is a CPU build."
        return HealthCheck("GPUs", "warn", f"{facts.gpus}, not usable by this torch", remedy)
    return HealthCheck("GPUs", "ok", str(facts.gpus) if facts.gpus else "none")


def memory() -> HealthCheck:
    import psutil

    memory = psutil.virtual_memory()
    free, total = (words.size(n, binary=True) for n in (memory.available, memory.total))
    found = f"{free} free of {total}"
    status = "ok" if memory.available >= LITTLE_MEMORY else "warn"
    return HealthCheck("memory", status, found, "Each worker needs about 0.5 GiB besides its data.")


def shared_memory() -> HealthCheck:
    """Create and free a memory segment as two workers would share it."""
    from phalanx.sync.arena import memfd

    try:
        os.close(memfd.create(2))
    except (OSError, AttributeError) as error:
        remedy = "Use --launcher inprocess: worker processes cannot share memory here."
        return HealthCheck("shared memory", "fail", str(error), remedy)
    return HealthCheck("shared memory", "ok", "a segment for two workers was created and freed")


def bfloat16(cpu_info: Path = CPU_INFO) -> HealthCheck:
    """Look for bfloat16 instructions; ``--precision auto`` measures the speed instead."""
    try:
        words = set(cpu_info.read_text().split())
    except OSError:
        return HealthCheck(
            "bfloat16", "warn", "unknown: no /proc/cpuinfo", "--precision auto measures it."
        )
    units = [name for name in ("amx_bf16", "avx512_bf16", "bf16", "svebf16") if name in words]
    if not units:
        remedy = "Use float32 on this CPU, or let --precision auto measure both."
        return HealthCheck("bfloat16", "warn", "this CPU has no instructions for it", remedy)
    return HealthCheck("bfloat16", "ok", ", ".join(units))


def run_folder() -> HealthCheck:
    """Write a file to test the folder: permissions do not show full disks or read-only mounts."""
    folder = runs_home()
    nearest = folder.absolute()
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(b"phalanx")
    except OSError as error:
        remedy = "Set PHALANX_RUNS to a folder you may write to."
        return HealthCheck("run folder", "fail", f"{folder}: {error.strerror}", remedy)
    made = "" if folder.exists() else " (created when needed)"
    return HealthCheck("run folder", "ok", f"{folder}{made}")


CHECKS: tuple[Check, ...] = (
    system,
    python,
    torch,
    cores,
    gpus,
    memory,
    shared_memory,
    bfloat16,
    run_folder,
)
