"""Writes checkpoints while training goes on: each worker writes a part, the first one the rest.

A checkpoint grows in a hidden folder. It gets its name when all parts and the manifest are on the
disk, so the newest named checkpoint is whole, whenever a worker may end.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent import futures
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor

from phalanx.core.background import BackgroundThread
from phalanx.core.errors import PeerLost
from phalanx.core.files import write_whole
from phalanx.sync.state.gradient_values import are_sound
from phalanx.train.checkpoint import checkpoint_index as shelf
from phalanx.train.checkpoint import remote_parts as parcels
from phalanx.train.checkpoint.checkpoint_manifest import (
    BEST,
    MANIFEST,
    SHARED,
    BestRecord,
    CheckpointManifest,
    FileRecord,
    delivery_note,
    failure_note,
    folder_name,
    partial_name,
    rank_file,
)
from phalanx.train.checkpoint.disk import Steps, fsync_folder, unwatched, write_durably
from phalanx.train.checkpoint.tensor_files import write_tensors

if TYPE_CHECKING:
    from phalanx.sync.connect.channel import Channel


PATIENCE = 60.0  # seconds that the first worker waits for the parts of the others
POLL = 0.01


class NotWritten(Exception):  # noqa: N818  (what happened, not what went wrong here)
    """A checkpoint could not be written; training goes on."""


@dataclass(frozen=True)
class _Job:
    number: int
    private: Mapping[str, Tensor]
    shared: Mapping[str, Tensor]
    manifest: CheckpointManifest | None
    captured: torch.cuda.Event | None  # recorded when a GPU's tensors have their values


class Writer:
    """Writes checkpoints, one writer per worker. All writers are made before any writes, because
    the first worker's removes leftovers. ``problem`` is the last failure: none is raised."""

    def __init__(
        self,
        folder: Path,
        rank: int,
        workers: int,
        keep: int,
        *,
        patience: float = PATIENCE,
        steps: Steps = unwatched,
        far: Mapping[int, Channel] | None = None,
        second: int | None = None,
        lost: Callable[[], Collection[int]] = tuple,
    ) -> None:
        self.problem: str | None = None
        self._lost = lost
        """Returns the lost workers, without which the others go on."""
        self._far = far or {}
        """Channels to workers without access to this folder; on such a worker, to the first one."""
        self._second = second
        """The worker on another machine that keeps each checkpoint too, if there is one."""
        self._folder, self._rank, self._workers, self._keep = folder, rank, workers, keep
        self._patience, self._steps = patience, steps
        self._is_far = rank != 0 and bool(self._far)
        self._thread, self._copies = BackgroundThread("phalanx-checkpoint"), HostCopies()
        self._under_way: list[futures.Future[None]] = []
        self._last = 0
        self.hidden = 0.0
        """Seconds of writing for which nobody waited."""
        self._best: BestRecord | None = None
        if rank == 0:
            self._tidy(lambda: shelf.sweep(folder))

    def begin(self, number: int) -> bool:
        """Wait until the last write is done with its tensors; ``False`` if it takes too long."""
        if number <= self._last:
            raise ValueError(f"checkpoint {number} cannot come after {self._last}")
        if self.finish(2 * self._patience):
            return True
        self.problem = f"checkpoint {number} was skipped: the previous one is still being written"
        return False

    def write(
        self,
        number: int,
        private: Mapping[str, Tensor],
        manifest: CheckpointManifest | None = None,
        shared: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Write this worker's part in the background. The tensors must not change meanwhile. The
        first worker also gives the manifest (without files) and what is common to all."""
        if not ((manifest is not None) == (shared is not None) == (self._rank == 0)):
            raise ValueError("the first worker, and no other, gives manifest and shared tensors")
        if not self.begin(number):
            return
        self._last = number
        captured = mark([*private.values(), *(shared or {}).values()])
        job = _Job(number, private, shared or {}, manifest, captured)
        self._under_way = [self._thread.submit(self._run, job)]

    def finish(self, timeout: float) -> bool:
        """Wait until nothing is being written; return ``False`` if that takes longer."""
        began = time.monotonic()
        left = futures.wait(self._under_way, timeout).not_done
        self.hidden -= time.monotonic() - began
        return not left

    def mark_best(self, number: int, name: str, value: float) -> None:
        """Keep checkpoint ``number``, finished or not, until another one is marked. If it is never
        finished, the one marked before is kept. Call this before the next checkpoint is written,
        which may remove this one."""
        best = BestRecord(number, name, value)
        self._under_way = [self._thread.submit(self._mark, best)]

    def _run(self, job: _Job) -> None:
        began = time.monotonic()
        try:
            private, shared = self._copies.bring(job.captured, job.private, job.shared)
            self._save(replace(job, private=private, shared=shared))
        except Exception as error:  # no error here may end the training
            self.problem = f"checkpoint {job.number} was not written: {_why(error)}"
            self._give_up(job.number)
        self.hidden += time.monotonic() - began

    def _save(self, job: _Job) -> None:
        if self._is_far:
            parcels.send(self._far[0], job.number, job.private)
            if self._rank == self._second:
                self._keep_copy(job.number)
            return
        partial = self._make_partial(job.number)
        if job.manifest is None:
            record = self._write_private(partial, job)
            self._steps(f"tell {delivery_note(self._rank)}")
            write_whole(partial / delivery_note(self._rank), msgspec.json.encode(record))
            return
        files = {SHARED: write_tensors(partial / SHARED, job.shared, self._steps)}
        files[rank_file(0)] = self._write_private(partial, job)
        self._steps("await the others")
        end = time.monotonic() + self._patience
        for rank in range(1, self._workers):
            files[rank_file(rank)] = self._part_of(rank, job.number, partial, end)
        finite = are_sound([v for n, v in job.shared.items() if ".parameters." in n])
        self._publish(partial, msgspec.structs.replace(job.manifest, files=files, finite=finite))

    def _keep_copy(self, number: int) -> None:
        """Receive the finished checkpoint from the first worker, to keep it on a second machine."""
        partial, end = self._make_partial(number), time.monotonic() + 2 * self._patience
        try:
            parcels.receive_whole(self._far[0], number, partial, end, self._steps)
        except parcels.NoParcel as problem:
            shelf.sweep(self._folder, number, self._steps)
            raise NotWritten(f"there is no copy here: the first worker {problem}") from None
        if (self._folder / folder_name(number)).is_dir():  # both machines share this disk
            shelf.sweep(self._folder, number, self._steps)
            return
        self._name(partial, number)
        self._tidy(lambda: shelf.prune(self._folder, self._keep, number, self._steps))

    def _send_copy(self, number: int) -> bool:
        """Send the checkpoint to the second machine; return whether it arrived, or never can."""
        if self._second is None:
            return True
        try:
            parcels.send_whole(self._far[self._second], number, self._folder / folder_name(number))
        except (PeerLost, OSError) as error:
            told = error.cause if isinstance(error, PeerLost) else error.strerror
            self.problem = f"checkpoint {number} has no second copy: {told}"
            return self._second in self._lost()
        return True

    def _part_of(self, rank: int, number: int, partial: Path, end: float) -> FileRecord:
        if rank in self._lost():
            return write_tensors(partial / rank_file(rank), {}, self._steps)
        if rank not in self._far:
            return self._delivered(partial, rank, end)
        try:
            path = partial / rank_file(rank)
            return parcels.receive(self._far[rank], number, path, end, self._steps)
        except parcels.NoParcel as problem:
            raise NotWritten(f"worker {rank} {problem}") from None

    def close(self) -> None:
        """Close the channels to other workers: nothing more is written."""
        for channel in self._far.values():
            channel.close()

    def _make_partial(self, number: int) -> Path:
        self._steps("mkdir")
        if not self._folder.is_dir():
            self._folder.mkdir(parents=True, exist_ok=True)
            fsync_folder(self._folder.parent, self._steps)
        partial = self._folder / partial_name(number)
        partial.mkdir(exist_ok=True)
        if partial.is_symlink():
            raise NotWritten(f"{partial.name} is a link")
        return partial

    def _write_private(self, partial: Path, job: _Job) -> FileRecord:
        return write_tensors(partial / rank_file(self._rank), job.private, self._steps)

    def _delivered(self, partial: Path, rank: int, end: float) -> FileRecord:
        """Wait for the part of ``rank``; remove its note, which is no part of the checkpoint."""
        note, failure = partial / delivery_note(rank), partial / failure_note(rank)
        while not note.exists():
            if failure.exists():
                raise NotWritten(f"worker {rank} could not write its part")
            if time.monotonic() > end:
                raise NotWritten(f"worker {rank} wrote no part within {self._patience:g} s")
            time.sleep(POLL)
        record = msgspec.json.decode(note.read_bytes(), type=FileRecord)
        note.unlink()
        return record

    def _publish(self, partial: Path, manifest: CheckpointManifest) -> None:
        write_durably(partial / MANIFEST, msgspec.json.encode(manifest), self._steps)
        self._name(partial, manifest.number)
        self._tidy(lambda: self._take_note(manifest.number))
        self._tidy(self._settle_best)
        # Keep older ones until this one would survive the loss of its machine.
        if self._send_copy(manifest.number):
            self._tidy(lambda: shelf.prune(self._folder, self._keep, manifest.number, self._steps))

    def _name(self, partial: Path, number: int) -> None:
        """Rename a partial checkpoint to a whole one, once all of it is on the disk."""
        fsync_folder(partial, self._steps)
        self._steps("rename folder")
        partial.rename(self._folder / folder_name(number))
        fsync_folder(self._folder, self._steps)

    def _mark(self, best: BestRecord) -> None:
        self._best = best
        if self._rank != 0:
            # The first worker finds the note when it names the checkpoint. If the folder is gone,
            # the checkpoint has its name already, or was given up.
            with contextlib.suppress(OSError):
                note = self._folder / partial_name(best.number) / BEST
                write_whole(note, msgspec.json.encode(best))
                self._best = None
        self._tidy(self._settle_best)

    def _take_note(self, number: int) -> None:
        note = self._folder / folder_name(number) / BEST
        if note.is_file() and not note.is_symlink():
            self._best = msgspec.json.decode(note.read_bytes(), type=BestRecord)
            note.unlink()

    def _settle_best(self) -> None:
        if self._best and (self._folder / folder_name(self._best.number)).is_dir():
            shelf.write_best(self._folder, self._best, self._steps)
            self._best = None

    def _tidy(self, action: Callable[[], None]) -> None:
        """Clean up; a failure leaves files behind, but harms no checkpoint."""
        try:
            action()
        except Exception as error:
            self.problem = f"old checkpoints could not be removed: {_why(error)}"

    def _give_up(self, number: int) -> None:
        """Give up a checkpoint: the first worker removes it, others tell the first not to wait."""
        with contextlib.suppress(Exception):
            if self._is_far:
                parcels.send_failure(self._far[0], number)
                return
            if self._rank == 0:
                shelf.sweep(self._folder, number, self._steps)
                if self._second is not None:
                    parcels.send_failure(self._far[self._second], number)
                return
            partial = self._folder / partial_name(number)
            partial.mkdir(parents=True, exist_ok=True)
            (partial / failure_note(self._rank)).touch()


def _why(error: Exception) -> str:
    told = error.strerror if isinstance(error, OSError) else str(error)
    return told or type(error).__name__


def mark(tensors: Iterable[Tensor]) -> torch.cuda.Event | None:
    """Record an event after the work that this thread gave to the tensors' GPU, if any."""
    device = next((t.device for t in tensors if t.is_cuda), None)
    if device is None:
        return None
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(device))
    return event


class HostCopies:
    """Copies tensors to memory of the host, which the next copy overwrites."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[int, str], Tensor] = {}
        self._stream: torch.cuda.Stream | None = None

    def bring(
        self, behind: torch.cuda.Event | None, *states: Mapping[str, Tensor]
    ) -> list[dict[str, Tensor]]:
        """Return ``states`` in memory of the host, as they were at the event ``behind``."""
        found = [{name: t if t.is_cuda else t.cpu() for name, t in s.items()} for s in states]
        if behind is None:
            return found
        device = next(t.device for state in found for t in state.values() if t.is_cuda)
        self._stream = self._stream or torch.cuda.Stream(device)
        with torch.cuda.stream(self._stream):
            self._stream.wait_event(behind)
            for number, state in enumerate(found):
                for name, tensor in state.items():
                    if tensor.is_cuda:
                        state[name] = self._copied((number, name), tensor)
        self._stream.synchronize()
        return found

    def _copied(self, key: tuple[int, str], tensor: Tensor) -> Tensor:
        known = self._buffers.get(key)
        if known is None or known.shape != tensor.shape or known.dtype != tensor.dtype:
            known = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._buffers[key] = known
        return known.copy_(tensor, non_blocking=True)
