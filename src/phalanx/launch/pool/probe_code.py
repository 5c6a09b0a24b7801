"""Our own code on a machine that is probed: the same as here, so that nothing is installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from phalanx.launch.machines.agent_link import open_agent
from phalanx.launch.machines.event_loop import in_thread
from phalanx.launch.shipping.loads import code_manifest
from phalanx.launch.shipping.manifest import FileManifest
from phalanx.launch.shipping.send import ignore_progress, ship
from phalanx.pool.machine import Machine

Code = tuple[Path, FileManifest]


async def own_code() -> Code:
    """Looked at once for all machines; reading it takes a while."""
    return await in_thread(code_manifest)


async def worker_command(machine: Machine, code: Code, module: str) -> Sequence[str]:
    """What starts ``module`` there, once the machine has our code."""
    if machine.is_here:
        own = "python" not in machine.model_fields_set
        return [sys.executable if own else machine.python, "-m", module]
    root, manifest = code
    async with await open_agent(machine, run=None) as link:
        folder = await ship(link, manifest, root, "code", ignore_progress)
    return ["env", f"PYTHONPATH={folder}", machine.python, "-m", module]
