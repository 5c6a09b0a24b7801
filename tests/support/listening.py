"""Who listens where in a lab machine, as ``ss`` tells it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from lab_machines import run_in

from phalanx.lab.lab import Lab


@dataclass(frozen=True)
class Port:
    address: str
    number: int
    owner: str
    """The name of the process, as the kernel has it."""


def listening(lab: Lab, machine: str) -> list[Port]:
    """Every TCP and UDP port that is open in a machine."""
    found = []
    for line in run_in(lab, machine, ["ss", "-ltunpH"]).splitlines():
        local = line.split()[4]
        address, _, number = local.rpartition(":")
        owner = re.search(r'users:\(\("([^"]+)"', line)
        found.append(Port(address.strip("[]"), int(number), owner.group(1) if owner else ""))
    return found


def of_the_run(lab: Lab, machine: str) -> list[Port]:
    """Those that are not the machine's own: its sshd is there before any run."""
    return [port for port in listening(lab, machine) if port.owner != "sshd"]
