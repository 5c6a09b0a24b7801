"""The one orchestrator of a run: writes down what it starts, watches, ends everything.

Nothing here waits without a bound, and nothing that was started outlives :func:`execute`.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.errors import (
    BAD_INPUT,
    DONE,
    MACHINE_FAILED,
    STOPPED,
    InputError,
    MachineError,
    PhalanxError,
    ScriptError,
)
from phalanx.core.files import write_whole
from phalanx.core.run_paths import RunPaths
from phalanx.launch.interrupts import Interrupts
from phalanx.launch.launcher import LAUNCHERS, Job, Launch, Launcher
from phalanx.launch.observer import Observer
from phalanx.launch.relay import Relay
from phalanx.launch.source import keep_source
from phalanx.launch.verdict import FREE_SOME_SPACE, culprit, explain, failures, told_by
from phalanx.observe import claim
from phalanx.observe.monitor import Monitor
from phalanx.observe.summary import Summary, summarise

__all__ = ["Observer", "Outcome", "execute"]

_TICK = 0.05
_GRACE_OF_STOP = 3.0
_GRACE_OF_FAILURE = 2.0
_PATIENCE_FOR_CAUSE = 1.0
"""Seconds to wait for the death that made another worker report a lost peer."""
_PATIENCE_FOR_EARLY = 30.0
"""Seconds that others may run on after a worker left without having finished its training."""
_PATIENCE_FOR_STRAGGLERS = 30.0
"""Seconds that others may run on after the first worker is done."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended. ``error`` says why when it was not ``done``."""

    summary: Summary
    error: PhalanxError | None
    exit_code: int


@dataclass(frozen=True)
class _Ending:
    status: str
    exit_code: int
    error: PhalanxError | None = None


def execute(job: Job, paths: RunPaths, observer: Observer) -> Outcome:
    """Run ``job`` in the folder ``paths`` to its end, whatever that is.

    Raises only what is wrong before anything is started. Call it from the main thread, which
    is where signals arrive.
    """
    launcher: Launcher = LAUNCHERS.get(job.launcher)()
    with Interrupts() as interrupts:
        launch = launcher.prepare(job, paths)
        write_whole(paths.plan, job.plan.to_json() + "\n")
        write_whole(paths.launch, launch.to_json() + "\n")
        keep_source(job.script, paths)
        return _Controller(launcher, launch, paths, observer, interrupts).run()


class _Patience:
    """Runs out some seconds after it was first asked for."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None

    def over(self) -> bool:
        now = time.monotonic()
        self._since = now if self._since is None else self._since
        return now - self._since >= self._seconds


class _Controller:
    """One run, from its start to its summary."""

    def __init__(
        self,
        launcher: Launcher,
        launch: Launch,
        paths: RunPaths,
        observer: Observer,
        interrupts: Interrupts,
    ) -> None:
        self._launcher = launcher
        self._launch = launch
        self._paths = paths
        self._observer = observer
        self._interrupts = interrupts
        self._ranks = [worker.rank for worker in launch.workers]
        machines = dict.fromkeys(worker.machine for worker in launch.workers)
        self._monitors = [
            Monitor(name, paths.machine(name), launcher.processes) for name in machines
        ]
        self._relay = Relay(paths, self._ranks, self._monitors, observer)
        self._cause_waited = _Patience(_PATIENCE_FOR_CAUSE)
        self._early_waited = _Patience(_PATIENCE_FOR_EARLY)
        self._stragglers_waited = _Patience(_PATIENCE_FOR_STRAGGLERS)

    def run(self) -> Outcome:
        ending = _Ending("failed", MACHINE_FAILED)
        with claim.hold(self._paths):
            try:
                ending = self._supervise()
            finally:
                self._end_everything()
                summary = self._summarise(ending)
                unwritten = self._write_down(summary)
        self._observer.finished(summary)
        error = ending.error or unwritten
        return Outcome(summary, error, ending.exit_code or (error.exit_code if error else DONE))

    def _supervise(self) -> _Ending:
        self._observer.started(self._launch)
        for monitor in self._monitors:
            monitor.start()
        try:
            self._launcher.start(self._launch, self._paths)
        except OSError as error:
            cause = MachineError(f"cannot start the workers: {error}")
            return _Ending("failed", MACHINE_FAILED, cause)
        ending = self._watch()
        self._relay.drain()
        if ending.status == "done" and not self._relay.joined:
            return self._never_joined()
        return ending

    def _watch(self) -> _Ending:
        """Look at the workers until one of the endings is reached."""
        while True:
            self._relay.poll()
            ending = self._ending(self._launcher.poll())
            if ending is not None:
                return ending
            time.sleep(_TICK)

    def _ending(self, codes: dict[int, int]) -> _Ending | None:
        if self._interrupts.asked():
            return self._stopped(STOPPED)
        if failures(codes):
            told = self._cause_waited.over()
            return self._failed(codes) if told or culprit(codes) is not None else None
        if len(codes) == len(self._ranks):
            return _Ending("done", DONE)
        if self._observer.has_seen_enough():
            return self._stopped(DONE)
        early = [rank for rank in codes if rank not in self._relay.finished]
        if early and self._early_waited.over():
            return self._ended_early(early[0])
        if self._ranks[0] in codes and self._stragglers_waited.over():
            return self._left_behind(codes)
        return None

    def _stopped(self, code: int) -> _Ending:
        self._launcher.stop(_GRACE_OF_STOP, self._interrupts.insisted)
        return _Ending("stopped", code)

    def _failed(self, codes: dict[int, int]) -> _Ending:
        """Stop the others and name the worker whose failure came first."""
        self._launcher.stop(_GRACE_OF_FAILURE, self._interrupts.asked)
        self._relay.drain()
        rank = culprit(codes)
        if rank is None:
            rank = next(iter(failures(codes)))
        error = explain(rank, codes[rank], self._paths)
        if error.exit_code != BAD_INPUT:
            for line in told_by(rank, self._paths):
                self._observer.failure(rank, line)
        return _Ending("failed", error.exit_code, error)

    def _ended_early(self, rank: int) -> _Ending:
        """A worker left in the middle: the others would wait for it for ever."""
        self._launcher.stop(_GRACE_OF_FAILURE, self._interrupts.asked)
        error = ScriptError(
            f"worker {rank} ended before the training did (log: {self._paths.log_of(rank)})",
            "Every worker has to call fit, or run the same epochs of join's loop.",
        )
        return _Ending("failed", error.exit_code, error)

    def _left_behind(self, codes: dict[int, int]) -> _Ending:
        late = [rank for rank in self._ranks if rank not in codes]
        self._launcher.stop(_GRACE_OF_FAILURE, self._interrupts.asked)
        names = " and ".join(f"worker {rank}" for rank in late)
        self._observer.output(
            self._ranks[0],
            f"phalanx: stopped {names}, still running {_PATIENCE_FOR_STRAGGLERS:.0f} s"
            " after the first worker was done",
        )
        return _Ending("done", DONE)

    def _never_joined(self) -> _Ending:
        error = InputError(
            f"{self._launch.script} never called phalanx.fit or phalanx.join",
            "Without one of them its workers do not train together; see the README.",
        )
        return _Ending("failed", error.exit_code, error)

    def _end_everything(self) -> None:
        self._launcher.stop(_GRACE_OF_FAILURE, self._interrupts.insisted)
        for monitor in self._monitors:
            monitor.stop()
        for rank in self._ranks:
            _append_to_log(self._paths.log_of(rank), told_by(rank, self._paths))

    def _summarise(self, ending: _Ending) -> Summary:
        codes = self._launcher.poll()
        exit_codes = [codes.get(rank) for rank in self._ranks]
        return summarise(self._paths, status=ending.status, exit_codes=exit_codes)

    def _write_down(self, summary: Summary) -> MachineError | None:
        """What is known is told even where it cannot be kept."""
        try:
            write_whole(self._paths.summary, summary.to_json() + "\n")
        except OSError as error:
            why = error.strerror or error
            return MachineError(f"cannot write {self._paths.summary}: {why}", FREE_SOME_SPACE)
        return None


def _append_to_log(log: Path, lines: list[str]) -> None:
    """Here, at the end, so that the terminal's view of the log never shows a traceback twice."""
    if not lines:
        return
    with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
