"""Runs at the same time, each with a controller in a process of its own: a controller takes up
signals, and ends what its process has started."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection

from phalanx.core.errors import InputError, MachineError, PhalanxError, RunStopped, ScriptError
from phalanx.launch.run.interrupts import Interrupts

_TICK = 0.05
_KINDS = {kind.__name__: kind for kind in (InputError, MachineError, ScriptError)}


def side_by_side(works: Sequence[Callable[[], None]]) -> None:
    """All of them; when one fails the others are stopped, and its error is raised."""
    forking = multiprocessing.get_context("fork")
    error: PhalanxError | None = None
    with Interrupts() as interrupts:
        running = []
        for work in works:
            ours, theirs = forking.Pipe(duplex=False)
            process = forking.Process(target=_run, args=(work, theirs))
            process.start()
            theirs.close()
            running.append((process, ours))
        asked = False
        while any(process.is_alive() for process, _ in running):
            error = error or next((e for _, pipe in running if (e := _told(pipe))), None)
            if (interrupts.asked() or error) and not asked:
                asked = True
                for process, _ in running:
                    process.terminate()
            time.sleep(_TICK)
        error = error or next((e for _, pipe in running if (e := _told(pipe))), None)
        if interrupts.asked():
            raise RunStopped
    if error is not None:
        raise error
    if lost := next((process for process, _ in running if process.exitcode), None):
        raise MachineError(f"a measuring process ended with exit code {lost.exitcode}")


def _run(work: Callable[[], None], pipe: Connection) -> None:
    try:
        work()
    except RunStopped:
        return
    except PhalanxError as error:
        kind = next((n for n, k in _KINDS.items() if isinstance(error, k)), "ScriptError")
        pipe.send((kind, error.cause, error.remedy))


def _told(pipe: Connection) -> PhalanxError | None:
    try:
        if not pipe.poll():
            return None
        kind, cause, remedy = pipe.recv()
    except EOFError:
        return None
    return _KINDS[kind](cause, remedy)
