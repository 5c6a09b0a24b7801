"""``python tied.py PYTHON SCRIPT [ARGUMENT]…``: becomes that command, tied to its controller.

For scripts that are run by a Python of their own, which need not have Phalanx: standard library
only. What is set here (death with the controller, cores, Ctrl-C) outlives ``exec``.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    controller = int(os.environ.get("PHALANX_CONTROLLER", "0"))
    if sys.platform.startswith("linux") and controller:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != controller:  # it died before the line above
            os._exit(1)
    # Ctrl-C is the controller's to answer: it stops the workers in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cpus = {int(cpu) for cpu in os.environ.get("PHALANX_CPUS", "").split(",") if cpu}
    if cpus:
        try:
            os.sched_setaffinity(0, cpus)
        except OSError as error:
            print(f"phalanx: cannot pin to cores {sorted(cpus)}: {error}", file=sys.stderr)
    os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
