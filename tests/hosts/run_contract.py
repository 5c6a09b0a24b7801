"""``make test-hosts``: the contract on two and three lab machines, then the tests of this folder.

Each rank of the contract is a thread that lives in the network of a lab machine. Needs root.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from phalanx.core.errors import PhalanxError
from phalanx.lab.lab import Lab

HERE = Path(__file__).resolve().parent
PYTEST = [sys.executable, "-m", "pytest", "-q"]
CONTRACT_SECONDS = 2400.0
HOSTS_SECONDS = 3600.0


def contract(lab: Lab, hosts: int) -> int:
    """Ranks are spread over the machines as evenly as it goes: three on two are two and one."""
    machines = lab.machines[:hosts]
    variables = {
        "PHALANX_TEST_HOSTS": str(hosts),
        "PHALANX_TEST_PLACES": ",".join(f"{m.address}=/proc/{m.pid}/ns/net" for m in machines),
    }
    print(f"the contract on {hosts} machines", flush=True)
    return run([str(HERE.parent / "contract"), "--timeout", "240"], CONTRACT_SECONDS, variables)


def run(words: list[str], limit: float, variables: dict[str, str] | None = None) -> int:
    """Pytest's exit code; one that does not end in time is killed."""
    command = [*PYTEST, *words]
    with subprocess.Popen(
        command, cwd=HERE.parents[1], env={**os.environ, **(variables or {})}
    ) as p:
        try:
            return p.wait(limit)
        except BaseException as error:
            p.kill()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
    print(f"it did not end in {limit:.0f} seconds", flush=True)
    return 1


def main() -> int:
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        with Lab.up(3, name=f"contract-{os.getpid()}") as lab:
            codes = [contract(lab, hosts) for hosts in (2, 3)]
    except PhalanxError as error:
        print(f"error: {error.cause}\n  {error.remedy}", file=sys.stderr)
        return error.exit_code
    codes.append(run([str(HERE), "-m", "slow or not slow", "--timeout", "400"], HOSTS_SECONDS))
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
