"""Checks what a lab needs of its host; an error names the package that has what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence

from phalanx.core.errors import InputError, MachineError

PACKAGES = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nsenter": "util-linux",
    "setpriv": "util-linux",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
}
"""The commands that are used, and the Debian packages that have them."""
PLACES = os.pathsep.join(("/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/bin", "/bin"))
COMMAND_LIMIT = 30.0


def check_root() -> None:
    if not sys.platform.startswith("linux"):
        raise InputError("a lab needs Linux", "Use a Linux machine, or WSL.")
    if os.geteuid() != 0:
        raise InputError("a lab needs root: it creates networks and cgroups", "Use sudo.")


def check_host() -> None:
    """Raise an :class:`InputError` unless this is root and all commands are there."""
    check_root()
    missing = [name for name in PACKAGES if find(name) is None]
    if missing:
        packages = sorted({PACKAGES[name] for name in missing})
        raise InputError(
            f"a lab needs {', '.join(missing)}", f"On Debian: apt-get install {' '.join(packages)}"
        )


def find(command: str) -> str | None:
    return shutil.which(command) or shutil.which(command, path=PLACES)


def tool(command: str) -> str:
    """The path of a command that has to be there."""
    found = find(command)
    if found is None:
        raise InputError(
            f"a lab needs {command}", f"On Debian: apt-get install {PACKAGES.get(command, command)}"
        )
    return found


def call(words: Sequence[str], text: str = "", *, fails: bool = True) -> str:
    """Run a command to its end and give its output; if it ``fails``, its own output is shown."""
    try:
        ended = subprocess.run(
            [tool(words[0]), *words[1:]],
            input=text,
            capture_output=True,
            text=True,
            timeout=COMMAND_LIMIT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"'{' '.join(words)}' did not end within {COMMAND_LIMIT:g} s", "Try: phalanx lab down"
        ) from None
    if ended.returncode and fails:
        said = " ".join((ended.stderr or ended.stdout).split()) or f"exit {ended.returncode}"
        raise MachineError(
            f"'{' '.join(words)}' failed: {said}",
            "Check that this user may use the kernel's veth, bridge, tbf and namespaces.",
        )
    return ended.stdout
