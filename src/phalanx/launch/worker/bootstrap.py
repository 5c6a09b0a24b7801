"""The program of a worker process: binds it to its controller and cores, and runs the script.

``python -m phalanx.launch.worker.bootstrap SCRIPT [ARGUMENT]…`` behaves like ``python SCRIPT …``.
Nothing here imports torch before the process is tied to its controller and pinned.
"""

from __future__ import annotations

import fcntl
import os
import pty
import struct
import sys
import termios
from pathlib import Path
from types import ModuleType

try:
    from phalanx.core import settings
    from phalanx.core.run_folder.run_paths import RunPaths
    from phalanx.core.script.startup import run_startup
    from phalanx.launch.worker.process_binding import tie
    from phalanx.launch.worker.script_runner import (
        import_folders,
        leave_in_time,
        main_module,
        run_script,
    )
except ModuleNotFoundError as error:
    from phalanx.core.script.missing_packages import tell_missing

    sys.exit(tell_missing(error))


def main() -> int:
    tie()
    chosen = settings.RunSettings.from_json(os.environ.get(settings.SETTINGS, "{}"))
    try:
        run_startup(adopt=chosen.adopt, profile=chosen.profile is not None)
    except ModuleNotFoundError as error:
        from phalanx.core.script.missing_packages import tell_missing

        return tell_missing(error)
    script, arguments = sys.argv[1], sys.argv[2:]
    rank = int(os.environ[settings.RANK])
    paths = RunPaths(Path(os.environ[settings.RUN_FOLDER]))
    os.environ[settings.PROCESS] = str(os.getpid())
    if chosen.adopt:
        give_terminal()
    main = become_main(script, arguments, chosen.module)
    code = run_script(main, paths.traceback_of(rank))
    if code != 0:
        leave_in_time(code)
    return code


def become_main(script: str, arguments: list[str], named: str | None = None) -> ModuleType:
    """Arrange ``sys`` as plain ``python SCRIPT`` does, with a fresh ``__main__``."""
    module = main_module(script, named)
    sys.modules["__main__"] = module
    # A spawned process finds the script by this name, also in objects that it sends back.
    sys.modules["__mp_main__"] = module
    sys.argv = [script, *arguments]
    if not os.environ.get("PYTHONSAFEPATH"):  # our own -P has left them out
        sys.path[:0] = import_folders(script, named)
    return module


def give_terminal() -> None:
    """Make standard input a terminal as large as the user's, on which nothing is ever typed.

    Scripts ask for its width (``stty size``). Reading from it returns end of file at once.
    """
    if os.isatty(0):
        return
    try:
        _, slave = pty.openpty()
    except OSError:  # no pseudo-terminal is free
        return
    attributes = termios.tcgetattr(slave)
    attributes[3] &= ~(termios.ICANON | termios.ECHO)
    attributes[6][termios.VMIN] = attributes[6][termios.VTIME] = 0
    termios.tcsetattr(slave, termios.TCSANOW, attributes)
    fcntl.ioctl(slave, termios.TIOCSWINSZ, _size())
    os.dup2(slave, 0, inheritable=True)
    os.close(slave)


def _size() -> bytes:
    """Return the size of this session's terminal; 24 lines of 80 if it has none."""
    unknown = struct.pack("HHHH", 24, 80, 0, 0)
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


if __name__ == "__main__":
    sys.exit(main())
