"""The first thing in a worker process: ties it to its controller, pins it, runs the script.

``python -m phalanx.launch.bootstrap SCRIPT [ARGUMENT]…`` behaves like ``python SCRIPT …``.
Nothing here imports torch before the process is tied to its controller and pinned.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

from phalanx.core import settings
from phalanx.core.run_paths import RunPaths
from phalanx.core.startup import run_startup
from phalanx.launch.script_runner import main_module, run_script

_PR_SET_PDEATHSIG = 1
_LAST_WORDS = 5.0
"""Seconds that a failed script's other threads and exit handlers get before they are cut off."""


def main() -> int:
    die_with_controller()
    # Ctrl-C is the controller's to answer: it stops the workers in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pin()
    run_startup()
    script, arguments = sys.argv[1], sys.argv[2:]
    rank = int(os.environ[settings.RANK])
    paths = RunPaths(Path(os.environ[settings.RUN_FOLDER]))
    code = run_script(become_main(script, arguments), paths.traceback_of(rank))
    if code != 0:
        _leave_in_time(code)
    return code


def die_with_controller() -> None:
    """Have the kernel kill this process when the controller is gone, however it went."""
    controller = int(os.environ.get(settings.CONTROLLER, "0"))
    if not sys.platform.startswith("linux") or not controller:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    # The controller may have died before the line above; then nobody would tell us.
    if os.getppid() != controller:
        os._exit(1)


def pin() -> None:
    """Stay on the cores of our slot; a core that has gone away since the plan is not fatal."""
    wanted = {int(cpu) for cpu in os.environ.get(settings.CPUS, "").split(",") if cpu}
    if not wanted:
        return
    try:
        os.sched_setaffinity(0, wanted)
    except OSError as error:
        print(f"phalanx: cannot pin to cores {sorted(wanted)}: {error}", file=sys.stderr)


def become_main(script: str, arguments: list[str]) -> ModuleType:
    """Arrange ``sys`` as plain ``python SCRIPT`` does, with a fresh ``__main__``."""
    module = main_module(script)
    sys.modules["__main__"] = module
    sys.argv = [script, *arguments]
    if not os.environ.get("PYTHONSAFEPATH"):  # we ourselves are started without the folder
        sys.path.insert(0, str(Path(script).resolve().parent))
    return module


def _leave_in_time(code: int) -> None:
    """A failed script whose other threads never end must not keep the run waiting."""

    def cut_off() -> None:
        time.sleep(_LAST_WORDS)
        os._exit(code)

    threading.Thread(target=cut_off, name="phalanx-leave", daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
