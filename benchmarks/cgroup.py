"""A control group that holds processes to a part of one core; needs root, leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

V1, V2 = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")
PERIOD = 10_000
"""Microseconds. Short against a step: a worker is slow, not now fast and then stopped."""
VARIABLE = "BENCH_CGROUP"
"""Tells a worker the file into which it writes its own process id."""
_REMOVAL_SECONDS = 10.0
_NAME = "phalanx-benchmark-"


class Group:
    """One group; free until it is told its share of a core."""

    def __init__(self, folder: Path, *, old: bool) -> None:
        self.folder, self._old = folder, old

    @property
    def members(self) -> Path:
        return self.folder / "cgroup.procs"

    def has_members(self) -> bool:
        return bool(self.members.read_text().strip())

    def hold_to(self, share: float | None) -> None:
        """``share`` of one core; ``None`` is as much as there is."""
        quota = None if share is None else round(share * PERIOD)
        if self._old:
            (self.folder / "cpu.cfs_period_us").write_text(str(PERIOD))
            (self.folder / "cpu.cfs_quota_us").write_text(str(-1 if quota is None else quota))
        else:
            (self.folder / "cpu.max").write_text(f"{'max' if quota is None else quota} {PERIOD}")

    def remove(self) -> None:
        """Free whoever is still in it, and remove it as soon as they have left."""
        self.hold_to(None)
        end = time.monotonic() + _REMOVAL_SECONDS
        while True:
            self._send_away()
            try:
                self.folder.rmdir()
                return
            except OSError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)

    def _send_away(self) -> None:
        for member in self.members.read_text().split():
            with contextlib.suppress(OSError):
                (self.folder.parent / "cgroup.procs").write_text(member)


@contextlib.contextmanager
def group() -> Iterator[Group]:
    """A new group, gone afterwards, whatever happened."""
    made = _make()
    try:
        yield made
    finally:
        made.remove()


def _make() -> Group:
    old = (V1 / "cpu.shares").exists()
    root = V1 if old else V2
    folder = root / f"{_NAME}{os.getpid()}"
    _remove_abandoned(root, old)
    try:
        if not old and "cpu" not in (root / "cgroup.subtree_control").read_text().split():
            (root / "cgroup.subtree_control").write_text("+cpu")
        folder.mkdir()
    except OSError as error:
        raise SystemExit(f"cannot hold a worker to a part of a core ({error}): be root") from error
    return Group(folder, old=old)


def _remove_abandoned(root: Path, old: bool) -> None:
    """Groups whose benchmark was killed before it could remove them."""
    for folder in root.glob(f"{_NAME}*"):
        if not Path(f"/proc/{folder.name.removeprefix(_NAME)}").exists():
            Group(folder, old=old).remove()


def join_named_group() -> None:
    """In a worker: enter the group that :data:`VARIABLE` names."""
    Path(os.environ[VARIABLE]).write_text(str(os.getpid()))
