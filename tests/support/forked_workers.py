"""Workers of one training as forks of this process, which has imported torch: a run in a second.

Each is a process of its own, with all that ``phalanx run`` gives it, and can fork in turn.
"""

from __future__ import annotations

import atexit
import importlib
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch

from phalanx.core import settings
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.script.startup import run_startup
from phalanx.core.settings import RunSettings
from phalanx.launch.worker.bootstrap import become_main
from phalanx.launch.worker.script_runner import run_script
from phalanx.sync.arena import memfd
from phalanx.train.proof import checks, proof

LIMIT = 180.0
importlib.import_module("phalanx.train.adopt.adoption")  # once, and not in each worker


@dataclass
class ForkedRun:
    """What a run ended with: ``results`` are what the script left in ``RESULT``, by worker."""

    results: list[dict[str, Any]]
    error: str
    said: str


def run_forked(script: Path, workers: int, folder: Path, **chosen: Any) -> ForkedRun:
    """To the end of all workers; one that fails ends the others."""
    paths = RunPaths(folder)
    paths.make()
    told = RunSettings(**{"adopt": True, **chosen}).to_json()
    arena = memfd.create(workers)
    try:
        ids = [_fork(script, paths, rank, workers, arena, told) for rank in range(workers)]
    finally:
        os.close(arena)
    codes = _wait(ids)
    tracebacks = [paths.traceback_of(rank) for rank in range(workers)]
    failed = [path.read_text() for path in tracebacks if path.exists()]
    logs = "".join(paths.log_of(rank).read_text() for rank in range(workers))
    results = list[dict[str, Any]]()
    if not any(codes):
        files = [_result(paths, rank) for rank in range(workers)]
        results = [torch.load(file, weights_only=False) for file in files]
    return ForkedRun(results, "" if results else "\n".join(failed) or f"{codes}\n{logs}", logs)


def _result(paths: RunPaths, rank: int) -> Path:
    return paths.folder / f"result-{rank}"


def _fork(script: Path, paths: RunPaths, rank: int, workers: int, arena: int, told: str) -> int:
    child = os.fork()
    if child:
        return child
    try:
        atexit._clear()
        log = os.open(paths.log_of(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(log, stream)
        sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
        torch.set_num_threads(1)
        os.environ |= {
            settings.RANK: str(rank),
            settings.WORKERS: str(workers),
            settings.RUN_FOLDER: str(paths.folder),
            settings.SETTINGS: told,
            settings.ARENA: str(arena),
            settings.PROCESS: str(os.getpid()),
        }
        _work(script, paths, rank)
    except BaseException as error:
        print(error, file=sys.stderr, flush=True)
    finally:
        os._exit(70)


def _work(script: Path, paths: RunPaths, rank: int) -> NoReturn:
    for module in (checks, proof):
        module.SECONDS = 30.0  # on a busy machine a check takes longer than it may
    run_startup(adopt=True)
    main = become_main(str(script), [])
    code = run_script(main, paths.traceback_of(rank))
    atexit._run_exitfuncs()
    if code == 0:
        torch.save(vars(main)["RESULT"], _result(paths, rank))
        code = int(paths.traceback_of(rank).exists())
    os._exit(code)


def _wait(ids: Sequence[int]) -> list[int]:
    codes, end = dict[int, int](), time.monotonic() + LIMIT
    while len(codes) < len(ids):
        for pid in (pid for pid in ids if pid not in codes):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                codes[pid] = os.waitstatus_to_exitcode(status)
        late = time.monotonic() > end
        if late or any(codes.values()):
            time.sleep(0.0 if late else 0.5)  # the others may say why they end
            for pid in (pid for pid in ids if pid not in codes):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)
    return [codes[pid] for pid in ids]
