"""A worker's standard input: a terminal of the user's size, on which nothing is ever typed.

Scripts ask it how wide the screen is (``stty size``). Reading from it ends at once, as without one.
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import termios

LINES, COLUMNS = 24, 80


def give_terminal() -> None:
    if os.isatty(0):
        return
    try:
        _, slave = pty.openpty()
    except OSError:  # there are only so many
        return
    attributes = termios.tcgetattr(slave)
    attributes[3] &= ~(termios.ICANON | termios.ECHO)
    attributes[6][termios.VMIN] = attributes[6][termios.VTIME] = 0
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, _size())
    os.dup2(slave, 0, inheritable=True)
    os.close(slave)


def _size() -> bytes:
    """That of the terminal in which the run was started, if this process is of its session."""
    unknown = struct.pack("HHHH", LINES, COLUMNS, 0, 0)
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return unknown
    try:
        found = fcntl.ioctl(terminal, termios.TIOCGWINSZ, unknown)
        return found if any(found[:4]) else unknown
    except OSError:
        return unknown
    finally:
        os.close(terminal)
