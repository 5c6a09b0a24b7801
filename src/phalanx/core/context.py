"""The identity of this thread, when several workers share one process.

A worker normally learns its rank from the environment of its process. Under the ``inprocess``
launcher the workers are threads, so each thread is given its own variables and the memory hub that
its siblings share.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from phalanx.core.errors import RunStopped


@dataclass(frozen=True)
class WorkerContext:
    """The variables of one worker thread, and the hub (``sync.arena.memory_arena.Hub``)."""

    environment: Mapping[str, str]
    hub: Any
    at_end: list[Callable[[], None]] = field(default_factory=list)
    """Functions to call when the worker's script has ended, the last one first."""


_local = threading.local()
Adviser = Callable[[BaseException], str]
_advisers: dict[int, Adviser] = {}
_suggested: dict[int, str] = {}


def enter(context: WorkerContext) -> None:
    """Make the calling thread the worker that ``context`` describes."""
    _local.context = context


def leave() -> None:
    """Make the calling thread an ordinary one again."""
    _local.context = None


def current() -> WorkerContext | None:
    """The context of the calling thread, or ``None`` in an ordinary process."""
    return getattr(_local, "context", None)


def call_at_end(call: Callable[[], None]) -> Callable[[], None]:
    """Call ``call`` when the script of this thread's worker, or of this process, has ended.
    Return a function that cancels this, and drops the reference to ``call``."""
    wanted, context = [call], current()

    def call_if_wanted() -> None:
        for each in wanted:
            each()

    if context is None:
        atexit.register(_unless_stopped, call_if_wanted)
    else:
        context.at_end.append(call_if_wanted)
    return wanted.clear


def _unless_stopped(call: Callable[[], None]) -> None:
    """Call ``call``; a signal to stop, which may come while a script ends, is no error here."""
    with suppress(RunStopped):
        call()


def be_advised_by(adviser: Adviser) -> None:
    """Let ``adviser`` comment on errors in this thread; it replaces any earlier adviser."""
    _advisers[threading.get_ident()] = adviser


def suggest_option(option: str) -> None:
    """Suggest, if a script is refused in this thread, an option with which it may run."""
    _suggested[threading.get_ident()] = option


def suggested_option(error: BaseException) -> str:
    option = _suggested.get(threading.get_ident())
    return f" Or run it with {option}." if option and option not in str(error) else ""


def advice_on(error: BaseException) -> str:
    """Return this thread's adviser's comment on an error of the script, or an empty text."""
    adviser = _advisers.get(threading.get_ident())
    return adviser(error) if adviser is not None else ""
