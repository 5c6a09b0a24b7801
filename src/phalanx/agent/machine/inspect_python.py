"""Finds out what a Python on this machine has, by running it without heavy imports."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phalanx.agent.agent import Agent
from phalanx.agent.frames import RequestProblem
from phalanx.agent.ownership import check, is_our_tree

INSPECT_SECONDS = 60.0
LOOK = """
import json, platform, sys, sysconfig
found = {"executable": sys.executable, "version": platform.python_version(), "packages": {}}
found["platform"] = sysconfig.get_platform()
found["libc"] = list(platform.libc_ver())
try:
    from importlib.metadata import PackageNotFoundError, version
except ImportError:
    sys.argv[1:] = []
for name in sys.argv[1:]:
    try:
        found["packages"][name] = version(name)
    except PackageNotFoundError:
        pass
print("\\n" + json.dumps(found))
"""


def inspect(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """``{python, packages[]}`` → executable, version, platform, and the versions of packages."""
    python = user_path(request["python"])
    names = [str(name) for name in request.get("packages", ())]
    if request.get("kept"):  # in our cache: run it only if no other user can change it
        check(Path(python).parents[2])
        if not is_our_tree(Path(python).parents[1]):
            raise _no_python(agent, python, "it is missing, or other users can write to it")
    try:
        ended = subprocess.run(
            [python, "-c", LOOK, *names],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=INSPECT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _no_python(agent, python, _why(error)) from error
    if ended.returncode != 0:
        raise _no_python(agent, python, last_line(ended.stderr))
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1].decode())
    return found


def user_path(path: Any) -> str:
    """Return a name or a path, with a leading tilde expanded."""
    return str(Path(path).expanduser()) if str(path).startswith("~") else str(path)


def _why(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "not found"
    return getattr(error, "strerror", None) or "it does not respond"


def _no_python(agent: Agent, python: str, why: str) -> RequestProblem:
    return RequestProblem(
        f"cannot run '{python}': {why}",
        "Correct the machine's 'python' in the blueprint, or install Python 3.11 there.",
    )


def last_line(output: bytes, marks: Sequence[str] = ()) -> str:
    """Return the last line with one of ``marks``, if there is one; else the last non-empty one."""
    lines = [line.strip() for line in output.decode(errors="replace").splitlines()]
    lines = [line for line in lines if line]
    marked = [line for line in lines if any(mark in line for mark in marks)]
    return (marked or lines or ["it printed nothing"])[-1][:500]
