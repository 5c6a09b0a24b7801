"""Says which worker has not finished its step for long, what it does, and who waits for it.

In lockstep one worker that hangs makes all others wait, so a missing step alone accuses no worker.
Workers show where their training is (``Alive``); one that waits for others is there within the
code that synchronises. A worker that cannot show anything, because it is stopped, is found on its
machine (``FrozenWorker``). That a step takes long is a fact; why is for the user to judge.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from phalanx.core.files import read_tail
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.words import listed
from phalanx.observe.events.event_types import (
    Alive,
    EpochDone,
    Event,
    Finished,
    FrozenWorker,
    Joined,
    MachineSample,
    PhaseDone,
    Saved,
    Steps,
    WorkerLost,
)

LEAST = 10.0
"""Seconds within an epoch without a step, after which this is said,"""
LEAST_BETWEEN = 60.0
"""between epochs and before the first step, where scripts do other work, and evaluate;"""
AS_SHOWN = 5.0
"""but never before so many times the longest such pause of the run."""
GRACE = 3.0
"""Seconds to wait for what workers and machines show of themselves."""
TOGETHER = 1.0
"""Seconds within which workers that wait for the same one fall silent."""
BUSY = 0.05
"""Cores: a thread that is blocked uses none at all, and one that computes gets more than this, also
of a crowded machine."""
_SAMPLE_BYTES = 1 << 14
_OURS = re.compile(r"^phalanx/(\w+)/(\w+)")
_LIBRARY = re.compile(r"^(phalanx/|torch/|threading\.py|<)|/(site|dist)-packages/|/lib/python3")
_WAITING = re.compile(r"^phalanx/(sync/|train/control/rendezvous)")
_DOING = {
    ("data", ""): "reads data",
    ("train", "checkpoint"): "writes a checkpoint",
    ("train", "figures"): "evaluates",
}


@dataclass
class _Progress:
    """How far a worker is, and where it was last seen."""

    name: str
    machine: str
    pid: int
    since: float
    """When its last step ended, or its last epoch, by our clock."""
    done: int = 0
    epoch: int = 0
    within: bool = False
    """Whether it is in the middle of an epoch."""
    seen: float = 0.0
    stack: list[str] = field(default_factory=list)
    busy: float | None = None


class Hangs:
    """Takes in the events of a run, and reports steps that take far longer than any before."""

    def __init__(self, paths: RunPaths, clock: Callable[[], float] = time.monotonic) -> None:
        self._paths, self._clock = paths, clock
        self._ranks: dict[int, _Progress] = {}
        self._longest = {True: 0.0, False: 0.0}
        """The longest pause of any worker within an epoch, and otherwise."""
        self._reported: dict[int, float] = {}
        """The ranks that were named, and since when they had made no step."""

    @property
    def named(self) -> Collection[int]:
        """The ranks that were named and have made no step since."""
        return self._reported.keys()

    def take(self, event: Event) -> None:
        now, found = self._clock(), self._ranks.get(event.rank)
        if isinstance(event, Joined) and event.pid:  # other systems' workers show nothing
            name = f"worker {event.rank} on {event.machine}"
            self._ranks[event.rank] = _Progress(name, event.machine, event.pid, now)
        elif isinstance(event, WorkerLost):
            self._ranks.pop(event.worker, None)
        elif isinstance(event, Finished):
            self._ranks.pop(event.rank, None)
        elif found is None:
            return
        elif isinstance(event, Alive):
            found.seen, found.busy = now, event.busy
            found.stack = found.stack if event.stack is None else event.stack
        elif isinstance(event, Steps | EpochDone | PhaseDone | Saved):
            pause = now - found.since
            if found.done or found.within:  # not before its first step, which may compile
                self._longest[found.within] = max(self._longest[found.within], pause)
            found.since = now
            if isinstance(event, Steps):
                found.done, found.within = event.first + len(event.began), True
                found.epoch = event.epoch
            elif isinstance(event, EpochDone) and event.epoch >= found.epoch:
                found.within = False  # otherwise steps of the next epoch were written before it

    def slept(self, seconds: float) -> None:
        """Leave ``seconds`` out of all pauses, because this computer slept and read no events."""
        self.excuse(self._ranks, seconds)

    def excuse(self, ranks: Collection[int], seconds: float | None = None) -> None:
        """Begin the pauses of ``ranks`` later: their machine is away, which is reported."""
        for rank in self._ranks.keys() & set(ranks):
            known, now = self._ranks[rank], self._clock()
            known.since = now if seconds is None else known.since + seconds

    def news(self) -> Iterator[str]:
        """Yield a line for each hang, once, and for its end."""
        now = self._clock()
        over = {
            r: now - known.since - self._limit(known.within) for r, known in self._ranks.items()
        }
        least = -TOGETHER if max(over.values(), default=-1.0) >= 0.0 else 0.0
        late = {rank: self._ranks[rank] for rank, seconds in over.items() if seconds >= least}
        if late and all(rank in late or not known.done for rank, known in self._ranks.items()):
            late = dict(self._ranks)  # the steps of some are lost with them: the others saw them
        for rank in [rank for rank in self._reported if rank not in late]:
            began = self._reported.pop(rank)
            if rank in self._ranks:
                yield f"{self._ranks[rank].name} makes steps again, after {now - began:.0f} s"
        if not late or self._reported:
            return
        frozen = self._frozen({known.machine for known in late.values()})
        if any(
            known.seen <= known.since and (known.machine, known.pid) not in frozen
            and now - known.since < self._limit(known.within) + GRACE
            for known in late.values()
        ):  # fmt: skip
            return  # some have not shown yet where they are
        does = {
            rank: what_it_does(known.stack, known.busy, frozen.get((known.machine, known.pid)))
            for rank, known in late.items()
        }
        own = {rank: what for rank, what in does.items() if what is not None}
        if not own and len(late) < len(self._ranks):
            return  # they wait for one that may take longer, because it is between epochs
        at_work = [rank for rank, what in own.items() if what[1]]
        if at_work and now - min(late[r].since for r in at_work) < LEAST_BETWEEN:
            return  # an evaluation or a checkpoint, which may take long
        self._reported = {rank: late[rank].since for rank in own or late}
        self._write_down(late, frozen, does, now)
        yield self._sentence(late, {rank: what[0] for rank, what in own.items()}, now)

    def _limit(self, within: bool) -> float:
        least = LEAST if within else LEAST_BETWEEN
        return max(least, AS_SHOWN * self._longest[within])

    def _sentence(self, late: dict[int, _Progress], does: dict[int, str], now: float) -> str:
        at = f"(stacks: {self._paths.stacks})"
        if not does:
            pause = now - min(known.since for known in late.values())
            return f"no worker has finished a step for {pause:.0f} s: all wait for others {at}"
        told = []
        for words in dict.fromkeys(does.values()):
            ranks = [rank for rank, what in does.items() if what == words]
            first = late[ranks[0]]
            names = listed([late[rank].name for rank in ranks])
            have = "has" if len(ranks) == 1 else "have"
            told.append(
                f"{names} {have} not finished step {first.done + 1} for "
                f"{now - first.since:.0f} s: {words}"
            )
        others = [known.name for rank, known in late.items() if rank not in does]
        if others:
            them = others[0] if len(others) == 1 else "the others"
            told.append(f"{them} {'waits' if len(others) == 1 else 'wait'} for that")
        return f"{'; '.join(told)} {at}"

    def _frozen(self, machines: Collection[str]) -> dict[tuple[str, int], FrozenWorker]:
        """Return the workers that do not run, by machine and process, by the last samples."""
        found = {}
        for machine in machines:
            lines = read_tail(self._paths.machine(machine), _SAMPLE_BYTES).rstrip().splitlines()
            try:
                sample = msgspec.json.decode(lines[-1], type=MachineSample)
            except (IndexError, msgspec.DecodeError):
                continue
            found.update({(machine, each.pid): each for each in sample.frozen or ()})
        return found

    def _write_down(
        self,
        late: dict[int, _Progress],
        frozen: dict[tuple[str, int], FrozenWorker],
        does: dict[int, tuple[str, bool] | None],
        now: float,
    ) -> None:
        lines = [time.strftime("%Y-%m-%d %H:%M:%S")]
        for rank, known in late.items():
            stopped, what = frozen.get((known.machine, known.pid)), does[rank]
            told = "it waits for others" if what is None else what[0]
            lines.append(f"{known.name}, step {known.done + 1}, {now - known.since:.0f} s: {told}")
            lines += [f"    {frame}" for frame in (stopped.stack if stopped else known.stack)]
        try:
            with self._paths.stacks.open("a", encoding="utf-8") as file:
                file.write("\n".join([*lines, "", ""]))
        except OSError:
            return  # the disk is full: the line on the terminal has to do


def what_it_does(
    stack: list[str], busy: float | None, frozen: FrozenWorker | None
) -> tuple[str, bool] | None:
    """Say what a worker does, and whether that is known to be long work of Phalanx; ``None`` if it
    waits for others."""
    stack = frozen.stack if frozen else stack
    at = next((n for n, frame in enumerate(stack) if not _LIBRARY.search(frame)), None)
    inner = stack if at is None else stack[:at]
    place = _place(stack[at] if at is not None else next(iter(stack), ""))
    if frozen is not None and frozen.state in ("T", "t"):
        how = f"a signal stopped it (kill -CONT {frozen.pid} lets it go on)"
        return f"{how}, before that it was in {place}" if place else how, False
    if frozen is not None:
        return f"native code lets no Python thread run (state {frozen.state}), in {place}", False
    if any(_WAITING.search(frame) for frame in inner):
        return None
    for frame in inner:
        ours = _OURS.search(frame)
        for (room, part), doing in _DOING.items() if ours else ():
            if ours and ours[1] == room and ours[2].startswith(part):
                return f"it {doing}, in {place}", room == "train"
    if not place:
        return "it has not shown where it is", False
    if busy is None:
        return f"it is in {place}", False
    return f"it {'computes' if busy >= BUSY else 'is blocked'} in {place}", False


def _place(frame: str) -> str:
    """``train.py:42 (in slow)`` of ``/home/me/train.py:42 slow``."""
    where, _, name = frame.partition(" ")
    return f"{Path(where).name} (in {name})" if name else ""
