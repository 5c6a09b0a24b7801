"""The seat of one worker, in a process of Ray or Spark: it starts the worker and reads its files.

A node that does not see the run's folder gets one of its own, whose files the controller fetches.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import msgspec

from phalanx.agent import system
from phalanx.agent.log_forwarder import finished_checkpoints
from phalanx.agent.storage.run_results import held, result_files
from phalanx.core.files import write_whole
from phalanx.core.run_folder.run_paths import RunPaths, slug
from phalanx.core.settings import RUN_FOLDER
from phalanx.launch.cluster import node
from phalanx.launch.cluster.seats import SeatNote
from phalanx.launch.launcher import WorkerCommand
from phalanx.observe.machines.monitor import Monitor

PIECE = 4 << 20
"""Most bytes of a file in one answer."""
_PROJECT = "project"
_END_SECONDS = 5.0


class WorkerSeat:
    """Starts, watches and ends one worker. Every method returns at once, without waiting for it."""

    def __init__(
        self, rank: int, address: str, folder: str, mark: str, threads: int = 0, device: str = ""
    ) -> None:
        """Take this node's ``address`` in the cluster, and ``mark``, a file of the run's folder.

        ``threads`` 0: a share of the node's cores. ``device`` "": what CUDA_VISIBLE_DEVICES says.
        """
        self._name = slug(os.uname().nodename)
        self.shared = Path(folder, mark).is_file()
        if not self.shared:
            folder = str(Path(tempfile.gettempdir()) / f"phalanx-{os.getuid()}-{mark}")
        self._paths = RunPaths(Path(folder))
        self._process: subprocess.Popen[bytes] | None = None
        self._code: int | None = None
        self._kept = ExitStack()
        self._monitor: Monitor | None = None
        gpus = [gpu for gpu in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if gpu]
        self._note = SeatNote(
            rank=rank, attempt=0, node=self._name, address=address, cores=os.cpu_count() or 1,
            threads=threads, device=device or ("cuda:0" if gpus else "cpu"),
        )  # fmt: skip

    def look(self) -> tuple[bytes, bool, float]:
        """Return the seat's note, whether it sees the run's folder, and its ``clock_ahead()``."""
        return msgspec.json.encode(self._note), self.shared, node.clock_ahead()

    def port(self, address: str) -> int:
        return node.port_of(address)

    def start(self, order: bytes, cwd: str, project: dict[str, bytes], ahead: float | None) -> int:
        """Start the worker of ``order``. ``project``: its files, if the run's folder is not here.

        ``ahead``: ``clock_ahead()`` of rank 0; ``None`` if another seat here watches the machine.
        """
        worker, place = msgspec.json.decode(order, type=WorkerCommand), Path(cwd)
        worker.argv[0] = sys.executable
        if not self.shared:
            place = self._own_folder(project)
            worker.env[RUN_FOLDER] = str(self._paths.folder)
        there = place if place.is_dir() else None
        self._process = node.start_worker(worker, self._paths, cwd=there, apart=True)
        if ahead is not None:
            offset, path = ahead - node.clock_ahead(), self._paths.machine(self._name)
            self._monitor = Monitor(self._name, path, self._pids, offset)
            self._monitor.start()
        return self._process.pid

    def _own_folder(self, project: dict[str, bytes]) -> Path:
        self._paths.folder.mkdir(mode=0o700, exist_ok=True)
        if self._paths.folder.is_symlink() or self._paths.folder.stat().st_uid != os.getuid():
            raise PermissionError(f"{self._paths.folder} is not ours")
        self._paths.make()
        root = self._paths.folder / _PROJECT
        for name, data in project.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            write_whole(root / name, data)  # another worker of this node may be reading it
        return root

    def _pids(self) -> list[int]:
        return [self._process.pid] if self._process and self._code is None else []

    def poll(self, offsets: dict[str, int]) -> tuple[int | None, dict[str, bytes], list[str]]:
        """Return the exit code, the next pieces of these files, and the checkpoints found here."""
        process = self._process
        if process is not None and self._code is None and system.has_ended(process.pid):
            # Before the leader is reaped its group cannot be another's.
            system.signal_group(process.pid, signal.SIGKILL)
            self._code = process.wait()
            if self._monitor is not None:
                self._monitor.stop()
        found = {name: self.piece(name, offset) for name, offset in offsets.items()}
        saved = finished_checkpoints(None if self.shared else self._paths.folder)
        return self._code, {name: data for name, data in found.items() if data}, saved

    def piece(self, name: str, offset: int) -> bytes:
        try:
            with (self._paths.folder / name).open("rb") as file:
                file.seek(offset)
                return file.read(PIECE)
        except OSError:
            return b""

    def files(self, checkpoint: str) -> list[tuple[str, int]]:
        """Return names and sizes of the results in this node's own folder, or of one checkpoint's
        files. Workers may remove a checkpoint, so it is held until the next call."""
        folder = self._paths.folder
        self._kept.close()
        found = result_files(folder)
        if checkpoint:
            found = self._kept.enter_context(held(folder, checkpoint)).iterdir()
        named = [(path.relative_to(folder).as_posix(), path.stat().st_size) for path in found]
        return [(name.encode(errors="replace").decode(), size) for name, size in named]

    def signal(self, number: int) -> None:
        if self._process is not None and self._code is None:
            system.signal_worker(self._process.pid, number)

    def end(self) -> None:
        """End the worker at once, and remove this node's own folder."""
        deadline = time.monotonic() + _END_SECONDS
        self.signal(signal.SIGKILL)
        while self._process and self.poll({})[0] is None and time.monotonic() < deadline:
            time.sleep(0.02)
        self.clean()

    def clean(self) -> None:
        if not self.shared:
            shutil.rmtree(self._paths.folder, ignore_errors=True)
