"""The detached agent: behind a socket in the run's folder, reached through a relay.

The controller that starts it, and each that attaches later, talks to a relay: a second agent that
only copies bytes between its own pipes and that socket. When a relay dies nothing else does.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from phalanx.agent import life
from phalanx.agent.agent import Agent
from phalanx.agent.frames import RequestProblem, pack, unpack
from phalanx.agent.guard import guarded
from phalanx.agent.system import readable
from phalanx.agent.wire import Gone, read_exactly, write_all

SOCKET = "agent.sock"
LOG = "agent.log"
WAY_SECONDS = 5.0


def go(make: Callable[[], Agent], hello: dict[str, Any]) -> int:
    """Leave an agent in the background, and become the relay to it."""
    folder, run_folder = life.folders(hello)
    if run_folder is None:
        raise RequestProblem("only a run can be detached")
    life.make_folders(folder, run_folder)
    listener = _listen(run_folder)
    if os.fork() == 0:
        _become_background(make, listener, run_folder)
    listener.close()
    return relay(hello)


def stay(agent: Agent) -> None:
    """Go on without our first controller; it, or another one, can reach us through the socket."""
    assert agent.run_folder is not None
    listener = _listen(agent.run_folder)
    _leave_pipes(agent.run_folder)
    try:
        life.receive_visitors(agent, listener)
    finally:
        _remove_traces(agent.run_folder)


def make_way(hello: dict[str, Any]) -> None:
    """End an agent of this run that has no workers left; one with workers stays."""
    run_folder = life.folders(hello)[1]
    other = _connect(run_folder) if run_folder is not None else None
    if other is None:
        return
    with other, contextlib.suppress(Gone):
        other.sendall(pack({"ask": "make_way", "id": 0}))
        header: dict[str, Any] = {"tell": ""}
        while "tell" in header:
            header, _ = unpack(lambda count: read_exactly(other.fileno(), count, WAY_SECONDS))
        if "answer" in header:
            return
    raise RequestProblem("this run is still running here", "Follow it with phalanx attach.")


def relay(hello: dict[str, Any]) -> int:
    """Copy frames both ways, ``hello`` first, until either side ends."""
    folder, run_folder = life.folders(hello)
    if run_folder is None:
        raise RequestProblem("the request names no run")
    life.check_ours(folder, run_folder)
    agent = _connect(run_folder)
    if agent is None:  # it has ended, or its machine was restarted
        write_all(1, pack({"answer": hello.get("id"), "gone": True}))
        return 0
    with agent:
        agent.sendall(pack(hello))
        return _copy(agent)


def _copy(agent: socket.socket) -> int:
    inside = agent.fileno()
    watched = [0, inside]
    while True:
        ready = readable(watched)
        if inside in ready and not _bring_out(agent):
            return 0
        if 0 in ready:
            data = os.read(0, 1 << 16)
            if not data:
                return 0
            try:
                agent.sendall(data)
            except OSError:  # the agent has gone; what it sent last is still to be copied
                watched = [inside]


def _bring_out(agent: socket.socket) -> bool:
    """Copy what the agent sent to standard output; return whether more may follow."""
    try:
        data = agent.recv(1 << 16)
        write_all(1, data)
    except OSError:
        return False
    return bool(data)


def _become_background(make: Callable[[], Agent], listener: socket.socket, folder: Path) -> None:
    os.setsid()
    _leave_pipes(folder)

    def work() -> int:
        try:
            agent = make()
            life.begin(agent)
            return life.receive_visitors(agent, listener)
        finally:
            _remove_traces(folder)
            life.discard_empty(folder)

    os._exit(guarded(work))


def _leave_pipes(folder: Path) -> None:
    nothing = os.open(os.devnull, os.O_RDWR)
    errors = os.open(str(folder / LOG), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor, target in ((0, nothing), (1, nothing), (2, errors)):
        os.dup2(target, descriptor)
    os.close(nothing)
    os.close(errors)


def _remove_traces(folder: Path) -> None:
    with contextlib.suppress(OSError), _short(folder) as path:
        Path(path).unlink()
    with contextlib.suppress(OSError):
        if not (folder / LOG).stat().st_size:
            (folder / LOG).unlink()


def _listen(folder: Path) -> socket.socket:
    if answers(folder):
        raise RequestProblem(
            "the run already has an agent on this machine", "Follow it with phalanx attach."
        )
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(folder) as path:
            with contextlib.suppress(FileNotFoundError):
                Path(path).unlink()
            listener.bind(path)
            listener.listen(4)
    except OSError as error:
        listener.close()
        raise RequestProblem(f"cannot create a socket in {folder}: {error.strerror}") from None
    return listener


def answers(folder: Path) -> bool:
    agent = _connect(folder)
    if agent is not None:
        agent.close()
    return agent is not None


def _connect(folder: Path) -> socket.socket | None:
    """``None``: no agent listens there."""
    agent = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(folder) as path:
            agent.connect(path)
    except (FileNotFoundError, ConnectionRefusedError):
        agent.close()
        return None
    except OSError as error:
        agent.close()
        raise RequestProblem(
            f"cannot reach the run's agent in {folder}: {error.strerror}"
        ) from None
    return agent


@contextlib.contextmanager
def _short(folder: Path) -> Iterator[str]:
    """The socket's path in a form that is never too long for a socket."""
    descriptor = os.open(str(folder), os.O_RDONLY | os.O_DIRECTORY)
    try:
        own = Path(f"/proc/self/fd/{descriptor}")
        yield str((own if own.is_dir() else folder) / SOCKET)
    finally:
        os.close(descriptor)
