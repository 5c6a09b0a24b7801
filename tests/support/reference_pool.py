"""The pool of the published resource optimiser, as machines of a lab.

Three machines without a GPU, two of which are efficient, and two with one GPU each.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from phalanx.lab.lab import Lab

EFFICIENT, PLAIN, WITH_GPU = ("m1", "m2"), ("m3",), ("m4", "m5")
MEMBERS = {
    "all": ["m1", "m2", "m3", "m4", "m5"],
    "cpus": ["m1", "m2", "m3"],
    "gpus": ["m4", "m5"],
    "energy": ["m1", "m2"],
}
DATASETS = Path("~/.cache/phalanx/datasets").expanduser()


def write_pool(lab: Lab, path: Path) -> None:
    """In our own form; the GPUs are said to be emulated."""
    lab.write_blueprint(path)
    lines = []
    for line in path.read_text().splitlines():
        name, colon, rest = line.strip().partition(": ")
        if colon and rest.startswith("{"):
            fields: dict[str, Any] = json.loads(rest)
            if name == "defaults":
                fields["data"] = str(DATASETS)
            fields |= {"energy_efficient": True} if name in EFFICIENT else {}
            fields |= {"gpus": 1} if name in WITH_GPU else {}
            line = f"{'' if name == 'defaults' else '  '}{name}: {json.dumps(fields)}"
        lines.append(line)
    path.write_text("\n".join(lines) + "\n")
    path.chmod(0o600)


def write_original(lab: Lab, path: Path, password: str) -> None:
    """As the optimiser's own users wrote it."""
    connections = [
        {
            "IP": machine.address,
            "Username": "root",
            "Password": password,
            "GPUS": int(machine.name in WITH_GPU),
            "energy efficient": "yes" if machine.name in EFFICIENT else "no",
        }
        for machine in lab.machines
    ]
    path.touch(0o600)
    path.chmod(0o600)
    path.write_text(json.dumps({"connections": connections}, indent=2) + "\n")
