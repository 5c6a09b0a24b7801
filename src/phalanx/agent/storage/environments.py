"""Makes the virtual environments of projects, each only once, in ``environments/<digest>``.

An environment is complete when it has a marker file, which is written last; one without a marker is
removed and made anew. If two runs need the same environment, one waits for the other.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phalanx.agent import system
from phalanx.agent.agent import Agent
from phalanx.agent.frames import RequestProblem
from phalanx.agent.machine.inspect_python import last_line, user_path
from phalanx.agent.ownership import is_our_tree
from phalanx.agent.storage.blobs import checked_digest, unwritable

MARKER = "phalanx-complete"
INSTALL_SECONDS = 3600.0
OUTPUT_KEPT = 256 << 10
NO_INDEX = (
    "NewConnectionError",
    "ConnectTimeoutError",
    "Name or service not known",
    "Temporary failure in name resolution",
    "Network is unreachable",
    "after connection broken by",
    "Failed to establish a new connection",
)
TELLING = ("Collecting ", "Downloading ", "Installing ", "Building ", "Successfully ")


def environment(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Answer ``{python, digest, steps, wheels}`` with the environment's ``python``, or ``offline``.

    Each step is ``{requirements, constraints}``. ``offline`` is pip's message when it reaches no
    package index: then the controller has to send the wheels.
    """
    home = Path(agent.folder) / "environments"
    folder = home / checked_digest(request["digest"])
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        with folder.with_name(folder.name + ".lock").open("w") as lock:
            _wait_for(agent, lock)
            return _made(agent, request, folder)
    except OSError as error:
        raise unwritable(agent, error) from error


def _wait_for(agent: Agent, lock: Any) -> None:
    deadline = time.monotonic() + INSTALL_SECONDS
    told = False
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError:
            pass  # another run has it
        if not told:
            agent.tell("note", text="waiting for another run that is creating the same environment")
            told = True
        if time.monotonic() > deadline:
            raise RequestProblem(
                "another run is still creating the same environment, and it takes too long",
                "Try again when that run has started, or end it.",
            )
        time.sleep(0.2)


def _made(agent: Agent, request: dict[str, Any], folder: Path) -> dict[str, Any]:
    python, marker = folder / "bin" / "python", folder / MARKER
    if marker.exists() and python.exists() and is_our_tree(folder):
        os.utime(marker)
        return {"python": str(python), "made": False}
    shutil.rmtree(folder, ignore_errors=True)
    _make_venv(agent, request, folder)
    offline = _install(agent, request, folder)
    if offline:
        return {"offline": offline}
    marker.write_text("whole\n")
    wheels = request.get("wheels")
    if wheels:  # their content stays among the blobs
        shutil.rmtree(str(wheels), ignore_errors=True)
    return {"python": str(python), "made": True}


def _make_venv(agent: Agent, request: dict[str, Any], folder: Path) -> None:
    agent.tell("note", text="creating a virtual environment")
    words = [user_path(request["python"]), "-m", "venv", str(folder)]
    code, output = run_bound(words, lambda line: None)
    if code == 127 or not (folder / "bin" / "python").exists():
        raise RequestProblem(
            f"cannot create a virtual environment: {last_line(output)}",
            "Install the module venv there (Debian, Ubuntu: apt install python3-venv), or set "
            "'python' in the blueprint to a Python that has torch.",
        )
    if code != 0:
        raise RequestProblem(f"cannot create a virtual environment: {last_line(output)}", "")


def _install(agent: Agent, request: dict[str, Any], folder: Path) -> str | None:
    """Install with pip, step by step; return pip's message if it reached no index."""
    wheels = request.get("wheels")
    for number, step in enumerate(request["steps"]):
        code, output = run_bound(
            _pip_words(folder, number, step, wheels), lambda line: _tell_progress(agent, line)
        )
        if code == 0:
            continue
        said, text = last_line(output, ("ERROR:",)), output.decode(errors="replace")
        if not wheels and any(mark in text for mark in NO_INDEX):
            return said
        raise RequestProblem(
            f"cannot install the project's requirements: {said}",
            "Correct them, or set 'python' in the blueprint to a Python that has them.",
        )
    return None


def _pip_words(folder: Path, number: int, step: dict[str, Any], wheels: str | None) -> list[str]:
    words = [str(folder / "bin" / "python"), "-m", "pip", "install", "--no-input"]
    words += ["--disable-pip-version-check", "--progress-bar", "off"]
    for option, kind in (("-r", "requirements"), ("-c", "constraints")):
        if step[kind]:
            file = folder / f"{kind}-{number}.txt"
            file.write_text(str(step[kind]), encoding="utf-8")
            words += [option, str(file)]
    return words + (["--no-index", "--find-links", wheels] if wheels else ["--retries", "1"])


def _tell_progress(agent: Agent, line: str) -> None:
    if line.startswith(TELLING):
        agent.tell("note", text=line[:120])


def run_bound(words: list[str], each: Callable[[str], None]) -> Any:
    """Run a command that ends with the agent; return its exit code and the end of its output."""
    output = bytearray()
    process = subprocess.Popen(
        system.bound(words),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    timer = threading.Timer(INSTALL_SECONDS, _end, (process,))
    timer.start()
    try:
        for line in process.stdout:
            output += line
            del output[:-OUTPUT_KEPT]
            each(line.decode(errors="replace").strip())
        return process.wait(), bytes(output)
    finally:
        timer.cancel()
        _end(process)


def _end(process: Any) -> None:
    if process.poll() is None:
        system.signal_group(process.pid, signal.SIGKILL)
        process.wait()
