# phalanx-worker
# Runs as PYTHON -I -S -c THIS PARENT PROGRAM ARGUMENTS, and then becomes the worker: the kernel
# kills this process when the agent dies, and still does after it has become the worker.
import ctypes
import os
import signal
import sys

parent, words = int(sys.argv[1]), sys.argv[2:]
if sys.platform.startswith("linux"):
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)
if os.getppid() != parent:
    os._exit(1)
# The agent's files are for its user only; a worker gets the umask that it would have without it.
os.umask(int(os.environ.pop("PHALANX_UMASK", "077"), 8))
# Python ignores these two signals; a worker that is not Python needs the default action.
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
try:
    os.execvp(words[0], words)
except OSError as error:
    sys.stderr.write(f"phalanx: cannot start {words[0]}: {error.strerror}\n")
    sys.stderr.flush()
    os._exit(127)
