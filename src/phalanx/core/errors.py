"""Errors with a cause and a remedy, each with the exit code it ends the command with.

A user's mistake is shown in one or two lines (what is wrong, where, what to do), never a traceback.
"""

from __future__ import annotations

import threading

DONE = 0
SCRIPT_FAILED = 1
BAD_INPUT = 2
MACHINE_FAILED = 3
STOPPED = 130


class PhalanxError(Exception):
    """Anything Phalanx itself reports; ``remedy`` says what to do about ``cause``."""

    exit_code = SCRIPT_FAILED

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(f"{cause}\n{remedy}" if remedy else cause)
        self.cause = cause
        self.remedy = remedy

    def __reduce__(self) -> tuple[type[PhalanxError], tuple[str, str]]:
        return type(self), (self.cause, self.remedy)  # for pickle, between processes


class InputError(PhalanxError):
    """The user's input is wrong: a file, a flag, a spec, an argument of the script API."""

    exit_code = BAD_INPUT


class ScriptError(PhalanxError):
    """The training script failed, or one of its workers died."""

    exit_code = SCRIPT_FAILED


class NotFinite(ScriptError):  # noqa: N818  (a state of the training)
    """Training has led to numbers that are not finite. The worker shows it as its last line."""


class MachineError(PhalanxError):
    """A machine or a connection failed."""

    exit_code = MACHINE_FAILED


class PeerLost(ScriptError):  # noqa: N818  (what happened, not what went wrong here)
    """Another worker is lost, so this one cannot continue."""


class MachineLost(PeerLost):
    """Another machine is lost, or cannot be reached."""

    exit_code = MACHINE_FAILED

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(cause, remedy)
        _this_thread.lost = True


_this_thread = threading.local()


def has_lost_a_machine() -> bool:
    """Whether this thread raised ``MachineLost``, so that its worker counts as failed."""
    return getattr(_this_thread, "lost", False)


class RunStopped(BaseException):
    """The user stopped the run. Not an ``Exception``, so that scripts do not swallow it."""

    exit_code = STOPPED
