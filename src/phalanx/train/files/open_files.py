"""Files that a process has open when it is forked."""

from __future__ import annotations

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path


def open_files_anew() -> None:
    """A data set may read from a file that is open: what the child reads must not move the place
    at which the worker goes on."""
    for link in list(Path("/proc/self/fd").iterdir()):
        number = int(link.name)
        with suppress(OSError):
            if stat.S_ISREG(os.fstat(number).st_mode):
                own = os.open(link, fcntl.fcntl(number, fcntl.F_GETFL))
                os.lseek(own, os.lseek(number, 0, os.SEEK_CUR), os.SEEK_SET)
                os.dup2(own, number, inheritable=False)
                os.close(own)
