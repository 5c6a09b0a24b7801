"""``process_binding.py PYTHON SCRIPT [ARGUMENT]…``: becomes that command, bound to its controller.

For scripts whose Python need not have Phalanx, so only the standard library is used. What is set
here (death with the controller, cores, Ctrl-C) outlives ``exec``.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def tie() -> None:
    die_with_controller()
    # Ctrl-C is handled by the controller, which stops the workers in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pin()


def die_with_controller() -> None:
    """Let the kernel kill this process when the controller is gone, however it ended."""
    controller = int(os.environ.get("PHALANX_CONTROLLER", "0"))
    if not sys.platform.startswith("linux") or not controller:
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    # The controller may have died before the line above, and then no signal would come.
    if os.getppid() != controller:
        os._exit(1)


def pin() -> None:
    """Pin this process to the cores of its slot; only warn if the plan's cores are gone."""
    wanted = {int(cpu) for cpu in os.environ.get("PHALANX_CPUS", "").split(",") if cpu}
    if not wanted:
        return
    try:
        os.sched_setaffinity(0, wanted)
    except OSError as error:
        print(f"phalanx: cannot pin to cores {sorted(wanted)}: {error}", file=sys.stderr)


if __name__ == "__main__":
    tie()
    os.execv(sys.argv[1], sys.argv[1:])
