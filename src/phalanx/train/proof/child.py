"""A child of a worker, which goes on with the script for itself, and is seen by nobody."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from phalanx.agent.system import readable
from phalanx.train.adopt.files.open_files import open_files_anew


def connections() -> set[str]:
    """The sockets and pipes of this process: at their other ends a child would be heard as well."""
    found = set()
    for place in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the folder itself, which is closed by now
            found.add(str(place.readlink()))
    return {name for name in found if name.startswith(("socket:", "pipe:"))}


def fork() -> int | None:
    """As ``os.fork``, or ``None`` where there is no room for a child. Python seeds ``random`` anew
    in a child; here it goes on."""
    state = random.getstate()
    try:
        child = os.fork()
    except OSError:
        return None
    if not child:
        random.setstate(state)
    return child


@contextmanager
def ends_if_it_fails() -> Iterator[None]:
    """In a child that is being made: it must not run the script as a worker would."""
    try:
        yield
    except BaseException:
        os._exit(1)


def answer_of(child: int | None, reading: int, seconds: float) -> bytes:
    """What the child writes, at most so many seconds from now; it is ended."""
    try:
        return os.read(reading, 1000) if child and readable([reading], seconds) else b""
    finally:
        os.close(reading)
        if child:
            with suppress(ProcessLookupError, ChildProcessError):  # the script reaps what ends
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def become_child(seconds: float) -> None:
    """After a fork: this process prints nothing, and ends after so many seconds at the latest."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.alarm(int(seconds))  # also if the worker is gone
    torch.set_num_threads(1)  # the threads of OpenMP do not survive a fork
    open_files_anew()
    for stream in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
