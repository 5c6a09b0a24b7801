"""The blueprint that describes a lab."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from phalanx.core.files import write_asked
from phalanx.lab import state as states
from phalanx.lab.state import LabState
from phalanx.pool.facts import Facts


def text_of(state: LabState, facts: Facts, key: Path) -> str:
    """YAML, one machine a line; every value is written as JSON, which YAML contains."""
    defaults = {"user": "root", "key": str(key), "python": sys.executable, "emulated": True}
    quotas = [machine.cpu for machine in state.machines]
    unequal = len(set(quotas)) > 1
    lines = [f"# The lab '{state.name}' on this host. End it: phalanx lab down {state.name}"]
    lines += [f"defaults: {json.dumps(defaults)}", "machines:"]
    for machine in state.machines:
        memory = min(state.memory or facts.memory, facts.memory)
        fields: dict[str, object] = {
            "host": machine.address,
            "cores": cores_of(machine.cpu, facts.cores),
            "memory": f"{memory // 1024**2}MiB",
            "host_key": machine.host_key,
        }
        if unequal and machine.cpu is not None:
            fields["speed"] = machine.cpu / 100
        lines.append(f"  {machine.name}: {json.dumps(fields)}")
    return "\n".join(lines) + "\n"


def cores_of(cpu: float | None, host: int) -> int:
    """A part of a core is a core: it takes a thread to use it."""
    return host if cpu is None else min(host, max(1, -int(-cpu // 100)))


def write(state: LabState, path: Path, facts: Facts) -> None:
    """Write it for this user only, and note it first so that the lab's end removes it."""
    path = path.absolute()
    text = text_of(state, facts, states.HOME / state.name / states.KEY_FILE)
    state.blueprint = str(path)
    state.blueprint_digest = hashlib.sha256(text.encode()).hexdigest()
    states.write(state)
    write_asked(path, text)
    path.chmod(0o600)
