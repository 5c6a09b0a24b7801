# phalanx-worker
# Run between the agent and a worker, as PYTHON -I -S -c THIS PARENT PROGRAM ARGUMENTS: ties the
# process to the agent, which the kernel keeps up when the process becomes the worker.
import ctypes
import os
import signal
import sys

parent, words = int(sys.argv[1]), sys.argv[2:]
if sys.platform.startswith("linux"):
    ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)
if os.getppid() != parent:
    os._exit(1)
# The agent's own files are for its user alone; a worker's are as private as they would be anyway.
os.umask(int(os.environ.pop("PHALANX_UMASK", "077"), 8))
# Python ignores these two; a worker that is no Python has to meet them as usual.
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
try:
    os.execvp(words[0], words)
except OSError as error:
    sys.stderr.write(f"phalanx: cannot start {words[0]}: {error.strerror}\n")
    sys.stderr.flush()
    os._exit(127)
