"""Says which worker has not finished its step for long, what it does, and who waits for it.

In lockstep one worker that hangs makes all others wait, so a missing step alone accuses no worker.
Workers show where their training is (``Alive``), every few seconds without another event; one that
waits for others is there within the code that synchronises. A worker that cannot show anything,
because it is stopped, is found on its machine (``FrozenWorker``), or by its silence. Why a step
takes long is for the user to judge: workers that hang are never ended.
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
from phalanx.launch.link.progress_notes import EACH_WORD, FIRST_WORD
from phalanx.observe.events import event_types as ev

LEAST = 10.0
"""Seconds within an epoch without a step, after which this is said,"""
LEAST_BETWEEN = 60.0
"""between epochs, before the first step, and while Phalanx evaluates or writes a checkpoint;"""
AS_SHOWN = 5.0
"""but never before so many times the longest such pause of the run."""
SILENT = 12.0
"""Seconds without any event, after which this is said at any time; workers have one every 5 s."""
GRACE = 3.0
"""Seconds to wait for what workers and machines show of themselves."""
TOGETHER = 1.0
"""Seconds within which workers that wait for the same one fall silent."""
BUSY = 0.05
"""Cores: a thread that is blocked uses none at all, and one that computes gets more than this, also
of a crowded machine."""
STANDSTILL = 60.0
"""Seconds in which no worker makes a step that are a standstill, if a machine is lost that no
worker reports; but never below twice the longest pause of the run."""
_SAMPLE_BYTES = 1 << 14
_LIBRARY = re.compile(r"^(phalanx/|torch/|threading\.py|<)|/(site|dist)-packages/|/lib/python3")
_WAITING = re.compile(r"^phalanx/(sync/|train/control/rendezvous)")
_LONG_WORK = re.compile(r"^phalanx/train/(checkpoint|figures)/")


@dataclass
class _Progress:
    """How far a worker is, and where it was last seen."""

    name: str
    machine: str
    pid: int
    since: float
    """When its last step ended, or its last epoch, by our clock."""
    spoke: float
    """When its last event came."""
    done: int = 0
    epoch: int = 0
    within: bool = False
    """Whether it is in the middle of an epoch."""
    seen: float = 0.0
    stack: list[str] = field(default_factory=list)
    busy: float | None = None
    frozen: ev.FrozenWorker | None = None
    does: str | None = None
    """What it does, in words; ``None`` if it waits for others."""


class Hangs:
    """Takes in the events of a run, and reports steps that take far longer than any before."""

    def __init__(
        self,
        paths: RunPaths,
        clock: Callable[[], float] = time.monotonic,
        awaited: Collection[int] = (),
    ) -> None:
        """``awaited``: the ranks that have to join."""
        self._paths, self._clock = paths, clock
        self._ranks: dict[int, _Progress] = {}
        self._longest = {True: 0.0, False: 0.0}
        """The longest pause of any worker within an epoch, and otherwise."""
        self._named: dict[int, float] = {}
        """The ranks that were named, with when they had made their last step."""
        self._awaited = set(awaited)
        self._began = self._stepped = clock()
        self._due = self._began + FIRST_WORD

    def take(self, event: ev.Event) -> None:
        now, found = self._clock(), self._ranks.get(event.rank)
        if found:
            found.spoke = now
        if isinstance(event, ev.Joined):
            self._stepped = now
            self._awaited.discard(event.rank)
            if event.pid:  # other systems' workers show nothing
                name = f"worker {event.rank} on {event.machine}"
                self._ranks[event.rank] = _Progress(name, event.machine, event.pid, now, now)
        elif isinstance(event, ev.WorkerLost | ev.Finished):
            lost = event.worker if isinstance(event, ev.WorkerLost) else event.rank
            self._ranks.pop(lost, None)
        elif found and isinstance(event, ev.Alive):
            found.seen, found.busy = now, event.busy
            found.stack = found.stack if event.stack is None else event.stack
        elif found and isinstance(event, ev.Steps | ev.EpochDone | ev.PhaseDone | ev.Saved):
            if found.done:  # not before its first step, which may compile
                longest = max(self._longest[found.within], now - found.since)
                self._longest[found.within] = longest
            found.since = now
            if isinstance(event, ev.Steps):
                found.done, found.epoch = event.first + len(event.began), event.epoch
                found.within, self._stepped = True, now
            elif isinstance(event, ev.EpochDone) and event.epoch >= found.epoch:
                found.within = False  # otherwise steps of the next epoch were written before it

    def slept(self, seconds: float) -> None:
        """Leave ``seconds`` out of all pauses, because this computer slept and read no events."""
        self._stepped += seconds
        for known in self._ranks.values():
            known.since += seconds
            known.spoke += seconds

    def excuse(self, ranks: Collection[int]) -> None:
        """Begin the pauses of ``ranks`` anew: their machine is away, which is reported."""
        for rank in self._ranks.keys() & set(ranks):
            self._ranks[rank].since = self._ranks[rank].spoke = self._clock()
            self._named.pop(rank, None)

    def stands_still(self) -> bool:
        """Whether no worker has made a step for ``STANDSTILL``."""
        pause = self._clock() - self._stepped
        return pause > max(STANDSTILL, 2.0 * max(self._longest.values()))

    def news(self) -> Iterator[str]:
        """Yield a line for each hang, once, and for its end; every minute, one on ranks yet to
        join."""
        now, late = self._clock(), self._late()
        if self._awaited and now >= self._due:
            self._due = now + EACH_WORD
            names = ", ".join(f"worker {rank}" for rank in sorted(self._awaited))
            yield f"the run has waited {now - self._began:.0f} s for {names} to start training"
        for rank in [rank for rank in self._named if rank not in late]:
            began = self._named.pop(rank)
            if rank in self._ranks:
                yield f"{self._ranks[rank].name} goes on, after {now - began:.0f} s"
        if not late or self._named:
            return
        self._look_for_frozen(late)
        for known in late.values():
            hidden = known.seen <= known.since and known.frozen is None
            if hidden and self._over(known) < GRACE and not self._is_silent(known):
                return  # it has not shown yet where it is
            known.does = what_it_does(known.stack, known.busy, known.frozen)
            if self._is_silent(known) and known.frozen is None:
                known.does = "it sends nothing: it may be stopped, short of memory, or stuck"
        own = {rank: known for rank, known in late.items() if known.does is not None}
        if not own and len(late) < len(self._ranks):
            return  # they wait for one that may take longer, because it is between epochs
        for known in own.values():
            longer = now - known.since < LEAST_BETWEEN and any(map(_LONG_WORK.search, known.stack))
            if longer and known.frozen is None and not self._is_silent(known):
                return
        self._named = {rank: late[rank].since for rank in own or late}
        self._write_down(late, now)
        yield self._sentence(late, own, now)

    def _late(self) -> dict[int, _Progress]:
        over = {rank: self._over(known) for rank, known in self._ranks.items()}
        least = -TOGETHER if max(over.values(), default=-1.0) >= 0.0 else 0.0
        late = {rank: self._ranks[rank] for rank, seconds in over.items() if seconds >= least}
        others = [known for rank, known in self._ranks.items() if rank not in late]
        if any(known.done for known in late.values()) and not any(known.done for known in others):
            return dict(self._ranks)  # the steps of some are lost with them: the others saw them
        return late

    def _over(self, known: _Progress) -> float:
        """Seconds since the moment from which on this worker is late."""
        least = LEAST if known.within else LEAST_BETWEEN
        limit = max(least, AS_SHOWN * self._longest[known.within])
        now = self._clock()
        return max(now - known.since - limit, now - known.spoke - SILENT)

    def _is_silent(self, known: _Progress) -> bool:
        return self._clock() - known.spoke >= SILENT

    def _sentence(self, late: dict[int, _Progress], own: dict[int, _Progress], now: float) -> str:
        told = []
        for words in dict.fromkeys(known.does for known in own.values()):
            alike = [known for known in own.values() if known.does == words]
            have = "has" if len(alike) == 1 else "have"
            told.append(
                f"{listed([known.name for known in alike])} {have} not finished step "
                f"{alike[0].done + 1} for {now - alike[0].since:.0f} s: {words}"
            )
        others = [known.name for rank, known in late.items() if rank not in own]
        if not own:
            told.append("no worker finishes its step: all wait for others")
        elif others:
            told.append(f"{others[0]} waits for that" if len(others) == 1 else "the others wait")
        return f"{'; '.join(told)} (stacks: {self._paths.stacks})"

    def _look_for_frozen(self, late: dict[int, _Progress]) -> None:
        """Look for workers that do not run, in the last reading of each machine."""
        for machine in {known.machine for known in late.values()}:
            lines = read_tail(self._paths.machine(machine), _SAMPLE_BYTES).rstrip().splitlines()
            try:
                sample = msgspec.json.decode(lines[-1], type=ev.MachineSample)
            except (IndexError, msgspec.DecodeError):
                continue
            frozen = {each.pid: each for each in sample.frozen or ()}
            for known in late.values():
                if known.machine == machine:
                    known.frozen = frozen.get(known.pid)
                    known.stack = known.frozen.stack if known.frozen else known.stack

    def _write_down(self, late: dict[int, _Progress], now: float) -> None:
        lines = [time.strftime("%Y-%m-%d %H:%M:%S")]
        for known in late.values():
            told = known.does or "it waits for others"
            lines.append(f"{known.name}, step {known.done + 1}, {now - known.since:.0f} s: {told}")
            lines += [f"    {frame}" for frame in known.stack]
        try:
            with self._paths.stacks.open("a", encoding="utf-8") as file:
                file.write("\n".join([*lines, "", ""]))
        except OSError:
            return  # the disk is full: the line on the terminal has to do


def what_it_does(
    stack: list[str], busy: float | None, frozen: ev.FrozenWorker | None
) -> str | None:
    """Say what a worker does; ``None`` if it waits for others."""
    at = next((n for n, frame in enumerate(stack) if not _LIBRARY.search(frame)), len(stack))
    where, _, name = "".join(stack[at : at + 1] or stack[:1]).partition(" ")
    place = f"{Path(where).name} (in {name})"
    if frozen is not None and frozen.state in ("T", "t"):
        how = f"a signal stopped it (kill -CONT {frozen.pid} lets it go on)"
        return f"{how}, before that it was in {place}"
    if frozen is not None:
        return f"native code lets no Python thread run (state {frozen.state}), in {place}"
    if any(map(_WAITING.search, stack[:at])):
        return None
    if not stack:
        return "it has not shown where it is"
    blocked = busy is not None and busy < BUSY
    return f"it {'is blocked' if blocked else 'computes'} in {place}"
