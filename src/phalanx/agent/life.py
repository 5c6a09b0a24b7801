"""How long the agent lives: as long as its run has a controller, or is detached.

If the connection ends, the controller has ended, and so does an attached run. A controller that
is only silent may come back: workers go on, and it reaches the agent by its socket.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phalanx.agent import ownership
from phalanx.agent.agent import Agent
from phalanx.agent.frames import InvalidFrame, RequestProblem, field, is_run
from phalanx.agent.machine.facts import machine_facts
from phalanx.agent.system import readable
from phalanx.agent.wire import Connection, Gone

SHARED_FOLDERS = ("blobs", "code", "data", "wheels", "environments", "runs")
GRACE = 2.0
SHORT_GRACE = 1.0
"""Seconds for workers to end after a silence: with ``PATIENCE``, less than the 10 they have."""
LINGER = 7 * 24 * 3600.0
"""Seconds an agent stays after a detached run, so that its end can be seen a week later."""
PARTS = ("events", "logs", "files")
TICK = 0.1
FLUSH = 2.0
SENDER_SECONDS = 0.5
WRONG_FRAME_CODE = 4
CUT_OFF_CODES = (3, 75, 143)
"""Exit codes of workers that ended because another machine or worker was lost, or because they
were asked to stop."""


def hello(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """Take name and folders from the request, and answer with the workers running here."""
    agent.name = field(request, "name", str)
    agent.hold = float(field(request, "hold", (int, float), 0.0))
    agent.bound = not request.get("detach") and (not request.get("attach") or agent.hold > 0)
    agent.folder, agent.run_folder = folders(request)
    if request.get("attach"):
        agent.logs.going, agent.saved = False, ""
    else:
        make_folders(agent.folder, agent.run_folder)
    return {
        "pid": os.getpid(),
        "folder": str(agent.folder),
        "workers": agent.workers.pids,
        "codes": agent.workers.codes,
    }


def facts(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    return machine_facts(agent.folder)


def folders(request: dict[str, Any]) -> tuple[Path, Path | None]:
    """Phalanx's folder on this machine, and this run's folder in it."""
    named = request.get("folder")
    if named is None:
        home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
        folder = _expanded(home) / "phalanx"
    else:
        folder = _expanded(field(request, "folder", str))
    run = field(request, "run", str, "")
    if run and not is_run(run):
        raise RequestProblem(f"invalid run id: {run[:100]!r}")
    return folder.absolute(), folder.absolute() / "runs" / run if run else None


def _expanded(folder: str) -> Path:
    try:
        return Path(folder).expanduser()
    except RuntimeError:
        raise RequestProblem(f"{folder} is in the home of a user that does not exist") from None


def make_folders(folder: Path, run_folder: Path | None) -> None:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if run_folder is not None:
            run_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for name in PARTS:
                (run_folder / name).mkdir(exist_ok=True)
        check_ours(folder, run_folder)
    except OSError as error:
        raise RequestProblem(
            f"cannot create {error.filename}: {error.strerror}",
            "Set 'folder' in the blueprint to a writable folder with free space.",
        ) from None


def check_ours(folder: Path, run_folder: Path | None) -> None:
    """Refuse folders that other users can write to, because code in them is run."""
    run_parts = [run_folder, *(run_folder / name for name in PARTS)] if run_folder else []
    ownership.check(folder, *(folder / name for name in SHARED_FOLDERS), *run_parts)


def discard_empty(run_folder: Path | None) -> None:
    """Remove the folders of a run that never began; those that are not empty stay."""
    if run_folder is None:
        return
    for folder in (*(run_folder / name for name in PARTS), run_folder):
        with contextlib.suppress(OSError):
            folder.rmdir()


def ping(agent: Agent, request: dict[str, Any], payload: bytes) -> None:
    agent.logs.heard_controller()
    agent.send({"tell": "pong", "sent": request.get("sent"), "mine": time.monotonic()}, urgent=True)


def leave(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    agent.ending = True
    agent.stop_workers(float(field(request, "grace", (int, float), GRACE)))
    return {}


def make_way(agent: Agent, request: dict[str, Any], payload: bytes) -> dict[str, Any]:
    """End, so that a new agent can fetch the results of a run that has ended."""
    if agent.workers.pids:
        raise RequestProblem("this run is still running here", "Follow it with phalanx attach.")
    agent.ending = True
    return {}


def live(agent: Agent, first: tuple[dict[str, Any], bytes], stay: Callable[[Agent], None]) -> int:
    """Serve the controller that started us, and end when it disconnects, not when it is silent."""
    begin(agent)
    code = _converse(agent, 0, 1, first)
    if not agent.ending:
        stay(agent)
    discard_empty(agent.run_folder)
    return code


def receive_visitors(agent: Agent, listener: socket.socket) -> int:
    """Serve one controller after another, until a long time after the workers have ended."""
    while not agent.ending:
        visitor = _next_visitor(agent, listener)
        if visitor is None:
            break
        with visitor:
            visitor.setblocking(True)
            _converse(agent, visitor.fileno(), visitor.fileno(), None, visitor)
    agent.stop_workers(GRACE)
    return 0


def _next_visitor(agent: Agent, listener: socket.socket) -> socket.socket | None:
    idle_since = time.monotonic()
    while not agent.ending and not _is_removed(agent):
        cut_off = _is_cut_off(agent)
        if agent.workers.pids and not cut_off:
            idle_since = time.monotonic()
        if time.monotonic() - idle_since > _time_to_linger(agent, cut_off):
            return None
        ready = readable([listener.fileno(), agent.bell.descriptor], 1.0)
        agent.bell.hush()
        if listener.fileno() in ready:
            with contextlib.suppress(OSError):
                return listener.accept()[0]
    return None


def _is_removed(agent: Agent) -> bool:
    """Whether another agent removed the run's folder, so that no controller finds this one."""
    folder = agent.run_folder
    return folder is not None and not folder.is_dir() and not agent.workers.pids


def _is_cut_off(agent: Agent) -> bool:
    """Whether this machine, and not only the controller, is cut off: its workers lost others, too.

    Then its workers have to end, because no controller would fetch what they train; those of a
    detached run, which has no controller, go on.
    """
    ended = any(code in CUT_OFF_CODES for code in agent.workers.codes.values())
    return agent.hold > 0 and (ended or (agent.bound and agent.logs.others_lost()))


def _time_to_linger(agent: Agent, cut_off: bool) -> float:
    """Seconds to wait for a controller: few if nothing was started or the machine is cut off."""
    if not agent.began:
        return agent.patience
    return max(0.0, agent.hold - agent.patience) if cut_off else LINGER


def _converse(
    agent: Agent,
    source: int,
    sink: int,
    first: tuple[dict[str, Any], bytes] | None,
    visitor: socket.socket | None = None,
) -> int:
    """Answer one controller until it goes; if the run is bound to it, the workers end then."""
    connection = agent.connection = Connection(source, sink, agent.bell, agent.patience)
    agent.bound = first is not None  # until its hello says more
    code, grace, asleep = 0, GRACE, False
    try:
        if first is not None:
            agent.answer(*first)
        while not agent.ending:
            agent.answer(*connection.receive())
    except Gone as gone:
        grace = SHORT_GRACE if gone.silent else GRACE
        asleep = gone.silent and agent.hold > 0 and agent.began
    except InvalidFrame as wrong:
        print(wrong, file=sys.stderr, flush=True)
        code = WRONG_FRAME_CODE
    finally:
        over = agent.ending or (agent.bound and not asleep)
        if over:
            agent.stop_workers(grace)  # while the controller may still be told
        if agent.ending:
            connection.flush(FLUSH)
        agent.ending = over
        connection.close()
        agent.connection = None
        if visitor is not None:
            # The sending thread, if within a frame, must not write the rest to the next visitor.
            with contextlib.suppress(OSError):
                visitor.shutdown(socket.SHUT_RDWR)
            connection.await_sender(SENDER_SECONDS)
        agent.bell.hush()
    return code


def begin(agent: Agent) -> None:
    """End on signals, and watch the workers."""

    def end(*_: object) -> None:
        if not agent.ending:
            print("the agent was terminated by a signal", file=sys.stderr, flush=True)
        agent.ending = True
        agent.bell.ring()

    def watch() -> None:
        while True:
            time.sleep(TICK)
            try:
                agent.look_after_workers()
            except Exception:  # a bug here must not leave the workers unwatched
                traceback.print_exc()

    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, end)
    threading.Thread(target=watch, name="watch", daemon=True).start()
