"""Guards the agent: its parent process cleans up if the agent dies before it has done so."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable

from phalanx.agent import system

_SECONDS = 2.0
_SIGNALS = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def guarded(work: Callable[[], int]) -> int:
    """Run ``work`` in a child and return its exit code; processes that it leaves are killed.

    The child has a process group of its own: when our group is killed, the child gets SIGTERM
    and has time to end its workers in order.
    """
    system.adopt_orphans()
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        _work(work, parent)
    for number in _SIGNALS:
        signal.signal(number, lambda *_: os.kill(child, signal.SIGTERM))
    # Only the child keeps the controller's pipes open, so they close when it ends.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    os.close(nothing)
    code = _exit_code(os.waitpid(child, 0)[1])
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    system.end_children(_SECONDS)
    return code


def _work(work: Callable[[], int], parent: int) -> None:
    code = 1
    try:
        os.setpgid(0, 0)
        system.die_with_parent(parent, signal.SIGTERM)
        system.adopt_orphans()
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        system.end_children(_SECONDS)
        os._exit(code)


def _exit_code(status: int) -> int:
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
