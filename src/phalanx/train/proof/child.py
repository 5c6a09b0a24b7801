"""A forked child of a worker, which continues the script alone and has no effect outside."""

from __future__ import annotations

import fcntl
import os
import random
import shutil
import signal
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from phalanx.agent.system import readable
from phalanx.train.files.side_effects import files_of_child, keep_files_of_child_apart


def connections() -> set[str]:
    """Return this process's sockets and pipes, which a forked child would share."""
    found = set()
    for place in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the folder itself is closed by now
            found.add(str(place.readlink()))
    return {name for name in found if name.startswith(("socket:", "pipe:"))}


class Child:
    """A forked child: making this object forks the process. In the child itself ``id`` is 0."""

    def __init__(self, seconds: float) -> None:
        """Prepare a child that prints nothing and ends after ``seconds`` at the latest."""
        self._code: int | None = None
        self._folder = files_of_child()
        self._reading, self._writing = os.pipe()
        state = random.getstate()
        try:
            self.id: int | None = os.fork()
        except OSError:  # there is no room for a child
            self.id, self._code = None, 1
        if self.id == 0:
            with ends_if_it_fails():
                random.setstate(state)  # Python seeds them anew in a child
                os.close(self._reading)
                _become_child(seconds)
                keep_files_of_child_apart(self._folder)
        else:
            os.close(self._writing)

    def tell(self, words: bytes) -> None:
        os.write(self._writing, words)

    def answer(self, seconds: float) -> bytes:
        """Return what the child sends within ``seconds``; empty if nothing came."""
        return os.read(self._reading, 1000) if readable([self._reading], seconds) else b""

    def exit_code(self) -> int | None:
        """The child's exit code; ``None`` while it runs."""
        if self._code is None and self.id:
            try:
                found, status = os.waitpid(self.id, os.WNOHANG)
            except ChildProcessError:  # the script has reaped it
                found, status = self.id, 0x100
            self._code = os.waitstatus_to_exitcode(status) if found else None
        return self._code

    def stop(self) -> None:
        if self.exit_code() is None and self.id:
            self._code = -signal.SIGKILL
            with suppress(ProcessLookupError, ChildProcessError):  # the script may reap what ends
                os.kill(self.id, signal.SIGKILL)
                os.waitpid(self.id, 0)

    def end(self) -> None:
        """End the child, and remove its files."""
        self.stop()
        os.close(self._reading)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


@contextmanager
def ends_if_it_fails() -> Iterator[None]:
    """End a child that fails during its set-up, as it must not run the script like a worker."""
    try:
        yield
    except BaseException:
        os._exit(1)


def _become_child(seconds: float) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.alarm(int(seconds))  # even if the worker is gone
    torch.set_num_threads(1)  # the threads of OpenMP do not survive a fork
    open_files_anew()
    for stream in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)


def open_files_anew() -> None:
    """Open files anew: a child must not move the worker's position in a file of a data set."""
    for link in list(Path("/proc/self/fd").iterdir()):
        number = int(link.name)
        with suppress(OSError):
            if stat.S_ISREG(os.fstat(number).st_mode):
                own = os.open(link, fcntl.fcntl(number, fcntl.F_GETFL))
                os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
                os.dup2(own, number, inheritable=False)
                os.close(own)
