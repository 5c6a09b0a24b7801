"""A child of a worker, which goes on with the script for itself, and is seen by nobody."""

from __future__ import annotations

import os
import random
import signal

import torch

from phalanx.train.adopt.files.open_files import open_files_anew


def fork() -> int:
    """As ``os.fork``; but Python seeds ``random`` anew in a child, and here it goes on."""
    state, child = random.getstate(), os.fork()
    if not child:
        random.setstate(state)
    return child


def become_child(seconds: float) -> None:
    """After a fork: this process prints nothing, and ends after so many seconds at the latest."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.alarm(int(seconds))  # also if the worker is gone
    torch.set_num_threads(1)  # the threads of OpenMP do not survive a fork
    open_files_anew()
    for stream in (0, 1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), stream)
