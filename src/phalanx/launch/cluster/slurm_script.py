"""The batch script of a run under Slurm: all that ``sbatch`` gets, and what a dry run prints."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.launcher import Job

UNSEEN = 66
"""The exit code of a job whose nodes lack a file of the run."""
LOG = "slurm.log"
_OURS = (
    "array", "chdir", "error", "input", "job-name", "ntasks", "open-mode", "output", "parsable",
    "test-only", "wait", "wrap",
)  # fmt: skip
_OPTION = re.compile(r"([a-z][a-z0-9-]*)(?:=([ -~]+))?")
_NEXT = re.compile(r",(?=[a-z][a-z-]*(?:=|,|$))")
"""A comma before the name of an option; others are a value's own, as in ``nodelist=n1,n2``."""


def read_options(text: str) -> list[str]:
    """``partition=gpu,time=1:00:00`` as options of ``sbatch``."""
    found = []
    for part in filter(None, (word.strip() for word in _NEXT.split(text))):
        match = _OPTION.fullmatch(part)
        if match is None:
            raise InputError(
                f"sbatch has no option '{part}'",
                "For example: --launcher slurm:partition=gpu,time=1:00:00",
            )
        if match[1] in _OURS:
            instead = "Use --workers." if match[1] == "ntasks" else "Leave it out."
            raise InputError(f"'{match[1]}' is an option of sbatch that Phalanx sets", instead)
        found.append(f"--{match[1]}" if match[2] is None else f"--{match[1]}={match[2]}")
    return found


def batch_script(job: Job, paths: RunPaths) -> str:
    """It holds no secret, and does the same when Slurm starts it again."""
    folder, workers = paths.folder.absolute(), job.plan.workers
    given = read_options(job.fleet.cluster)
    requeue = [] if {"--requeue", "--no-requeue"} & set(given) else ["--requeue"]
    log = str(folder / "logs" / LOG).replace("%", "%%")
    directives = [
        f"--job-name=phalanx-{paths.id}", f"--ntasks={workers}", f"--chdir={Path.cwd()}",
        f"--output={log}", "--open-mode=append", *requeue, *given,
    ]  # fmt: skip
    needed = [folder / "launch.json", Path(sys.executable), job.script.absolute()]
    files = shlex.join(map(str, needed))
    seat = [sys.executable, "-P", "-m", "phalanx.launch.cluster.slurm_seat", str(folder)]
    look = (
        'for file; do [ -r "$file" ] || '
        f'{{ echo "phalanx: $SLURMD_NODENAME does not see $file"; exit {UNSEEN}; }}; done'
    )
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {shlex.quote(word)}" for word in directives),
            "export PYTHONUNBUFFERED=1",
            "# srun does not take this from sbatch by itself.",
            'export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"',
            "# Every node has to see the run, the Python and the script.",
            'srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES"'
            f" --ntasks-per-node=1 --input=none bash -c {shlex.quote(look)} phalanx {files}"
            f" || exit {UNSEEN}",
            f"exec srun --ntasks={workers} --kill-on-bad-exit=0 --wait=0 --input=none"
            f" {shlex.join(seat)}",
            "",
        ]
    )
