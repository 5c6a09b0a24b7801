"""``python -m phalanx.spark.worker``: the process that trains, beside the task that started it.

Its request comes on standard input. Its results are in the task's folder: weights (of the first
worker), figures, or the reason for a failure.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import msgspec

from phalanx.agent.system import die_with_parent
from phalanx.core import hosts_settings as hosts
from phalanx.core import settings
from phalanx.core.errors import InputError, NotFinite, PeerLost, RunStopped
from phalanx.core.run_folder.run_key import KEY_VARIABLE
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.spark.messages import FAILURE, FIGURES, WEIGHTS, WorkerFailure, WorkerRequest


def main() -> int:
    request = msgspec.json.decode(sys.stdin.buffer.read(), type=WorkerRequest)
    die_with_parent(request.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the driver handles Ctrl-C
    folder = Path(request.folder)
    paths = RunPaths(Path(request.training.store or folder / "run")).make()
    _take_place(request, paths)
    try:
        _train(request, folder)
    except BaseException as error:
        failure = _described(error)
        # Other workers report the last line as the cause.
        paths.traceback_of(request.rank).write_text(failure.text + "\n", encoding="utf-8")
        (folder / FAILURE).write_bytes(msgspec.json.encode(failure))
        return 1
    return 0


def _take_place(request: WorkerRequest, paths: RunPaths) -> None:
    """Set the environment variables that a launcher of Phalanx would set."""
    training, first, own = request.training, request.tasks[0], request.tasks[request.rank]
    chosen = RunSettings(
        strategy=training.strategy, seed=training.seed, resume=first.resume,
        checkpoint_epochs=1 if training.store else 0,
    )  # fmt: skip
    os.environ |= {
        settings.RANK: str(request.rank),
        settings.WORKERS: str(training.workers),
        settings.RUN_FOLDER: str(paths.folder),
        settings.MACHINE: own.address,
        settings.SETTINGS: chosen.to_json(),
        hosts.MEET: hosts.endpoint(first.address, first.port),
        hosts.ADDRESS: own.address,
        hosts.MEMBERS: ",".join(dict.fromkeys(task.address for task in request.tasks)),
        hosts.TLS: "1" if training.tls else "0",
        KEY_VARIABLE: request.key,
    }


def _train(request: WorkerRequest, folder: Path) -> None:
    import torch

    from phalanx.core.script.startup import run_startup
    from phalanx.spark.training import train

    if torch.cuda.is_available():
        before = [task.address for task in request.tasks[: request.rank]]
        local = before.count(request.tasks[request.rank].address)
        gpu = request.gpu or str(local % torch.cuda.device_count())
        os.environ[settings.DEVICE] = f"cuda:{gpu}"
    run_startup()
    figures, weights = train(request)
    if request.rank == 0:
        (folder / WEIGHTS).write_bytes(weights)
    (folder / FIGURES).write_bytes(msgspec.json.encode(figures))


def _described(error: BaseException) -> WorkerFailure:
    from phalanx.launch.worker.script_runner import users_traceback

    if isinstance(error, PeerLost | RunStopped):
        return WorkerFailure(kind="peer", text=str(error) or "it was stopped")
    if isinstance(error, InputError):
        return WorkerFailure(kind="input", text=error.cause, remedy=error.remedy)
    text = str(error) if isinstance(error, NotFinite) else users_traceback(error)
    return WorkerFailure(kind="script", text=text.rstrip())


if __name__ == "__main__":
    sys.exit(main())
