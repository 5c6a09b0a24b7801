"""Runs the user's script as ``__main__`` and turns its ending into an exit code.

The bootstrap of a worker process uses it, and so do the threads of ``inprocess``. An exception is
written to the rank's traceback file, without our own frames above the user's; the controller shows
it once and copies it to the log.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, TracebackType

from phalanx.core import stopping
from phalanx.core.context import advice_on, suggested_option
from phalanx.core.errors import (
    SCRIPT_FAILED,
    InputError,
    MachineError,
    MachineLost,
    NotFinite,
    PeerLost,
    RunStopped,
)
from phalanx.core.script.packages import place_of

STOPPED_CODE = 143
"""The exit code of a worker that stopped on request, as a shell reports SIGTERM."""
PEER_LOST_CODE = 75
"""The exit code of a worker that ended only because another one did: that one is the cause."""

_LAST_WORDS = 5.0
"""Seconds that a failed script's other threads and exit handlers get before they are cut off."""
_HOOKS = str(Path(__file__).parents[2] / "train" / "adopt")


def main_module(script: str, named: str | None = None) -> ModuleType:
    """Make a fresh ``__main__`` for ``script``, which may be a module of a package."""
    module, path = ModuleType("__main__"), Path(script).absolute()
    module.__file__ = str(path)
    place = place_of(path, named)
    if place.package:
        module.__package__, module.__spec__ = place.package, place.spec(path)
    return module


def import_folders(script: str, named: str | None = None) -> list[str]:
    """Return where the script's imports are looked for first, as in Python for a file or ``-m``."""
    place, own = place_of(Path(script).resolve(), named), str(Path(script).resolve().parent)
    if named is not None:
        return [str(place.root)]
    return [own, str(place.root)] if place.package else [own]


def run_script(main: ModuleType, traceback_file: Path) -> int:
    """Execute the script in ``main``; return its exit code."""
    try:
        return _run(main, traceback_file)
    except RunStopped:  # perhaps while another error of the script was written
        return STOPPED_CODE


def _run(main: ModuleType, traceback_file: Path) -> int:
    script, process = str(main.__file__), os.getpid()
    try:
        # The script must not inherit the __future__ imports of this module.
        code = compile(Path(script).read_bytes(), script, "exec", dont_inherit=True)
        try:
            exec(code, main.__dict__)
        finally:
            if os.getpid() != process:  # the script forked this process, which is no worker
                sys.stdout.flush()
                os._exit(0 if sys.exc_info()[0] is None else SCRIPT_FAILED)
    except SystemExit as ending:
        if ending.code is None:
            return 0
        if isinstance(ending.code, int):
            return ending.code & 0xFF
        _write(traceback_file, f"{ending.code}\n")
        return SCRIPT_FAILED
    except RunStopped:
        raise
    except PeerLost as error:
        if stopping.asked():
            return STOPPED_CODE  # all were asked to stop, and the others ended first
        if isinstance(error, MachineLost):
            _write(traceback_file, str(error) + "\n")
            return error.exit_code
        _write(traceback_file, users_traceback(error))
        return PEER_LOST_CODE
    except (InputError, MachineError, NotFinite) as error:
        _write(traceback_file, f"{error}{suggested_option(error)}\n")
        return error.exit_code
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError):
            from phalanx.core.script.missing_packages import missing_package

            if told := missing_package(error):
                _write(traceback_file, f"{told}\n")
                return told.exit_code
        _write(traceback_file, users_traceback(error) + advice_on(error))
        return SCRIPT_FAILED
    # A script that has left its loop gets no exception when its training fails.
    return SCRIPT_FAILED if traceback_file.exists() else 0


def leave_in_time(code: int, before: Callable[[], object] | None = None) -> None:
    """End a failed script soon, even if its threads do not end, because other workers wait."""

    def cut_off() -> None:
        time.sleep(_LAST_WORDS)
        if before is not None:
            before()
        os._exit(code)

    threading.Thread(target=cut_off, name="phalanx-leave", daemon=True).start()


def users_traceback(error: BaseException) -> str:
    """Return the traceback as plain ``python script.py`` would print it."""
    frames = _without_ours(error.__traceback__)
    told = traceback.TracebackException(type(error), error, frames, compact=True)
    if not os.environ.get("PHALANX_DEBUG"):
        _hide_hooks(told)
    return "".join(told.format())


def _hide_hooks(told: traceback.TracebackException) -> None:
    """Remove the frames of functions that we replaced for an adopted script, such as ``open``."""
    told.stack[:] = [frame for frame in told.stack if not frame.filename.startswith(_HOOKS)]
    for other in (told.__cause__, told.__context__, *(getattr(told, "exceptions", None) or ())):
        if other is not None:
            _hide_hooks(other)


def _without_ours(frames: TracebackType | None) -> TracebackType | None:
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return frames


def _write(path: Path, text: str) -> None:
    """Write a file; ignore a full disk, because the exit code still shows the failure."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError:
        with contextlib.suppress(OSError):  # the log has no space either
            print(text, flush=True)
