"""Controls one job of Slurm by the commands that every cluster has: sbatch, squeue, scancel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.errors import InputError, MachineError
from phalanx.core.run_folder.run_key import KEY_FILE_VARIABLE, KEY_VARIABLE

_ANSWER_SECONDS = 30.0
_WIDTHS = {"State": 20, "RestartCnt": 10, "Reason": 60, "NodeList": 300}
OVER = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PREEMPTED", "REVOKED", "TIMEOUT", "GONE",
)  # fmt: skip
_NO_SUCH_JOB = "Invalid job id"


@dataclass(frozen=True)
class JobState:
    """The state that Slurm reported last; ``GONE``: Slurm does not know the job any more."""

    state: str
    restarts: int = 0
    reason: str = ""
    nodes: str = ""

    @property
    def over(self) -> bool:
        return self.state in OVER


def check_commands() -> None:
    missing = [name for name in ("sbatch", "squeue", "scancel") if shutil.which(name) is None]
    if missing:
        raise InputError(
            f"this machine has no '{missing[0]}', so it cannot submit to Slurm",
            "Run it on a login node of the cluster, or leave out --launcher slurm.",
        )


def submit(script: Path) -> str:
    """Submit a script; return the number of the job."""
    # Without variables of other jobs, which would apply to this one, and keys, which Slurm stores.
    inner = re.compile(r"SLURM_(?!CONF$)|SRUN_")
    kept = {n: v for n, v in os.environ.items() if not inner.match(n)}
    for name in (KEY_VARIABLE, KEY_FILE_VARIABLE):
        kept.pop(name, None)
    try:
        ended = subprocess.run(
            ["sbatch", "--parsable", str(script)],
            env=kept,
            capture_output=True,
            text=True,
            timeout=_ANSWER_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise MachineError(
            f"sbatch did not answer within {_ANSWER_SECONDS:.0f} s", "Check Slurm: sinfo"
        ) from None
    number = ended.stdout.strip().partition(";")[0]
    if ended.returncode or not number.isdecimal():
        lines = ended.stderr.strip().splitlines() or ["it said nothing"]
        said = lines[-1].removeprefix("sbatch: ").removeprefix("error: ")
        raise InputError(
            f"Slurm did not take the job: {said}", "Correct --launcher slurm:… (see sinfo)."
        )
    return number


class SlurmJob:
    """A Slurm job; asks for its state without waiting for the answer."""

    def __init__(self, number: str) -> None:
        self.number = number
        self.last = JobState("")
        self._asking: subprocess.Popen[str] | None = None
        self._asked = 0.0

    def look(self, every: float) -> JobState:
        """Return the last answer; ask again if it is older than ``every`` seconds."""
        asking, now = self._asking, time.monotonic()
        if asking is None:
            if now - self._asked >= every:
                self._asked, self._asking = now, self._ask()
        elif asking.poll() is not None:
            said, complaint = asking.communicate()
            self._take(asking.returncode, said, complaint)
            self._asking = None
        elif now - self._asked > _ANSWER_SECONDS:
            self.close()
        return self.last

    def _ask(self) -> subprocess.Popen[str]:
        columns = ",".join(f"{name}:{width}" for name, width in _WIDTHS.items())
        words = ["squeue", "--noheader", "--states=all", f"--jobs={self.number}", "-O", columns]
        pipe = subprocess.PIPE
        return subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
        )

    def _take(self, code: int, said: str, complaint: str) -> None:
        line, at, parts = said.split("\n")[0], 0, []
        for width in _WIDTHS.values():
            parts.append(line[at : at + width].strip())
            at += width
        state, restarts, reason, nodes = parts
        if state:
            number = int(restarts) if restarts.isdecimal() else 0
            self.last = JobState(state, number, reason, nodes)
        elif code == 0 or _NO_SUCH_JOB in complaint:
            self.last = JobState("GONE", self.last.restarts)
        # Otherwise Slurm did not answer this time, which does not mean that the job ended.

    def cancel(self, *options: str) -> None:
        words = ["scancel", *options, self.number]
        with suppress(subprocess.TimeoutExpired, OSError):  # the caller looks at the state
            subprocess.run(words, capture_output=True, timeout=_ANSWER_SECONDS, check=False)

    def close(self) -> None:
        if self._asking is not None:
            self._asking.kill()
            self._asking.communicate()
            self._asking = None
