"""Controls a run: records what it starts, watches the workers, and ends them.

Nothing that was started outlives :func:`execute`, unless the run is detached or left alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from phalanx.core.errors import BAD_INPUT, DONE, MACHINE_FAILED, STOPPED, MachineError, PhalanxError
from phalanx.core.files import write_whole
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.run_folder.trust import write_launch
from phalanx.launch.frameworks.framework import SERVER
from phalanx.launch.launcher import LAUNCHERS, STOP_SECONDS, Job, Launch, Launcher
from phalanx.launch.run import failure
from phalanx.launch.run.event_tail import Relay
from phalanx.launch.run.foreign_runs import counted, figures_of, stuck_first, why_failed
from phalanx.launch.run.interrupts import Interrupts
from phalanx.launch.run.kept_notes import KeptNotes
from phalanx.launch.run.observer import Observer
from phalanx.launch.run.open_run_folder import (
    FreeSpace,
    OpenRunFolder,
    append_to_log,
    folder_gone,
    keep_source,
)
from phalanx.launch.run.patience import Patience
from phalanx.launch.worker.script_runner import STOPPED_CODE
from phalanx.observe.events.notes import FAULT
from phalanx.observe.summary import run_lock as claim
from phalanx.observe.summary.run_status import RUNNING
from phalanx.observe.summary.summary import Summary, summarise

_TICK = 0.05
_GRACE_OF_FAILURE = 2.0
_PATIENCE_FOR_CAUSE = 3.0
"""Seconds to wait for the end of the worker that another worker reported as lost."""
_PATIENCE_FOR_EARLY = 30.0
"""Seconds that others may run on after a worker left without finishing its training."""
_PATIENCE_FOR_STRAGGLERS = 30.0
"""Seconds that others may run on after the first worker is done."""
_PATIENCE_FOR_FIRST = 300.0
"""Seconds that the first process of another framework may run on after all the others."""


@dataclass(frozen=True)
class RunOutcome:
    """The end of a run; ``error`` is the reason if something failed."""

    summary: Summary
    error: PhalanxError | None
    exit_code: int


@dataclass(frozen=True)
class _Ending:
    status: str
    exit_code: int
    error: PhalanxError | None = None


def execute(job: Job, paths: RunPaths, observer: Observer) -> RunOutcome:
    """Run ``job`` in the folder ``paths`` until it is done, has failed or was stopped.

    Raises only errors from before the start; later ones are in the outcome. Call it from the main
    thread, where signals arrive.
    """
    launcher: Launcher = LAUNCHERS.get(job.launcher)()
    observer = KeptNotes(paths, observer)
    with Interrupts() as interrupts:
        job = launcher.open(job, paths, observer.note, interrupts.asked)
        try:
            launch = _settle(launcher, job, paths)
            controller = Controller(launcher, launch, paths, observer, interrupts)
        except BaseException:
            launcher.finish(observer.note, interrupts.insisted)
            raise
        return controller.run()


def _settle(launcher: Launcher, job: Job, paths: RunPaths) -> Launch:
    """Prepare the launch, and write it down before anything starts."""
    launch = launcher.prepare(job, paths)
    try:
        write_whole(paths.plan, job.plan.to_json() + "\n")
        write_launch(paths, launch.to_json() + "\n")
        keep_source(job.script, paths)
    except OSError as error:
        raise failure.cannot_write(paths.folder, error) from None
    return launch


class Controller:
    """Watches one run from its start to its summary."""

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
        self._named: set[int] = set()
        self._monitors = launcher.monitors(launch, paths)
        self._training = [w.rank for w in launch.workers if launch.joins and w.role != SERVER]
        """The ranks that join the training: all but parameter servers."""
        self._relay = Relay(paths, self._ranks, observer, self._training)
        self._cause_waited = Patience(_PATIENCE_FOR_CAUSE)
        self._early_waited = Patience(_PATIENCE_FOR_EARLY)
        self._stragglers_waited = Patience(_PATIENCE_FOR_STRAGGLERS)
        self._first_waited = Patience(_PATIENCE_FOR_FIRST)
        self._figures = figures_of(launch, paths)
        self._place = OpenRunFolder(paths.folder)
        self._space = FreeSpace(paths.folder)

    def run(self) -> RunOutcome:
        ending = _Ending("failed", MACHINE_FAILED)
        with claim.hold(self._paths):
            try:
                ending = self._supervise()
            finally:
                if ending.status != RUNNING:
                    self._launcher.stop(_GRACE_OF_FAILURE, self._interrupts.insisted)
                    self._launcher.finish(self._observer.note, self._interrupts.insisted)
                    if ending.status == "done" and (why := self._model_lost()):
                        ending = _Ending(
                            "failed", MACHINE_FAILED, failure.model_lost(why, self._paths)
                        )
                    for monitor in self._monitors:
                        monitor.stop()
                    self._paths.remove_private()
                    for rank in self._ranks:
                        append_to_log(self._paths.log_of(rank), failure.told_by(rank, self._paths))
                exit_codes = list(map(self._launcher.codes().get, self._ranks))
                summary = summarise(self._paths, status=ending.status, exit_codes=exit_codes)
                unwritten = self._write_down(summary) if ending.status != RUNNING else None
        self._observer.finished(summary)
        error = ending.error or unwritten
        return RunOutcome(summary, error, ending.exit_code or (error.exit_code if error else DONE))

    def _model_lost(self) -> PhalanxError | None:
        """Return why the first worker, which was lost or killed, wrote no model; else ``None``."""
        first = self._ranks[0]
        code = self._launcher.codes().get(first, 0)
        killed = failure.explain(first, code, self._paths, self._launch) if code < 0 else None
        why = self._launcher.lost().get(first) or killed
        return None if self._paths.model.exists() else why

    def _supervise(self) -> _Ending:
        self._observer.started(self._launch)
        for monitor in self._monitors:
            monitor.start()
        try:
            self._launcher.start(self._launch, self._paths)
        except OSError as error:
            return self._stop_for(MachineError(f"cannot start the workers: {error}"))
        ending = self._watch()
        if self._figures:
            self._figures.finish(ending.status)
        self._relay.drain()
        if ending.status == "done" and not self._relay.joined and self._launch.joins:
            return _Ending("failed", BAD_INPUT, failure.never_joined(self._launch.script))
        kept = all(self._paths.events_of(rank).exists() for rank in self._relay.joined)
        if ending.status == "done" and not kept:
            return self._stop_for(folder_gone(self._paths))
        return ending

    def _watch(self) -> _Ending:
        """Poll the workers until the run has an ending, and return it."""
        while True:
            if self._figures:
                self._figures.poll()
            self._relay.poll({**self._launcher.lost(), **self._launcher.away()})
            for text in self._launcher.news():
                self._observer.alert(text, FAULT)
            for text in self._space.news():
                self._observer.alert(text)
            try:
                ending = self._ending(self._launcher.poll())
            except PhalanxError as error:
                return _Ending("failed", error.exit_code, error)
            if not self._place.is_there():
                return self._stop_for(folder_gone(self._paths))
            if ending is not None:
                return ending
            time.sleep(_TICK)

    def _ending(self, codes: dict[int, int]) -> _Ending | None:
        if self._interrupts.asked():
            return self._stopped(STOPPED)
        if self._launcher.detached() and (self._relay.joined or not self._launch.joins):
            self._launcher.leave()  # only once a worker has joined, so that early errors are shown
            return _Ending(RUNNING, DONE)
        if alone := self._launcher.alone():
            return self._left_to_itself(alone)
        lost = self._lost()
        gone = {**lost, **self._launcher.away()}  # workers are gone with their machine
        codes = {rank: code for rank, code in codes.items() if code == 0 or rank not in gone}
        killed = self._taken_along(codes)
        left = {rank: code for rank, code in codes.items() if rank not in killed}
        if failure.failures(counted(self._launch, left)) or len(killed) == len(self._ranks):
            known = gone or failure.is_clear(codes)
            return self._failed(codes) if known or self._cause_waited.over() else None
        for rank, error in lost.items():
            # Other frameworks cannot go on without a machine, and no worker can before it joins.
            begun = self._launch.joins and rank in self._relay.joined
            if not begun or (rank not in self._relay.lost and self._relay.stands_still()):
                return self._stop_for(error)
        if len({*codes, *lost, *killed}) == len(self._ranks):
            # A killed worker is excused only if the others said that they go on without it.
            missed = [rank for rank in killed if codes.get(rank, 0) < 0]
            if any(rank not in self._relay.lost for rank in missed):
                return self._failed(codes)
            return _Ending("done", DONE)
        if self._observer.has_seen_enough():
            return self._stopped(DONE)
        if self._launch.decides:
            return self._ending_of_foreign(codes)
        early = [rank for rank in left if rank not in self._relay.finished]
        if early and self._early_waited.over():
            return self._stop_for(failure.ended_early(early[0], self._paths))
        waited_for = self._ranks[0] in left and not self._launcher.away()
        if waited_for and self._stragglers_waited.over():
            return self._left_behind(codes)
        return None

    def _taken_along(self, codes: dict[int, int]) -> set[int]:
        """Return ranks gone with a killed worker; workers of other machines may go on."""
        begun = self._launch.joins and self._relay.joined.issuperset(self._training)
        gone = failure.taken_along(codes, self._launch) if begun else set()
        for rank in [r for r in gone - self._named if codes.get(r, 0) < 0]:
            self._named.add(rank)
            error = failure.explain(rank, codes[rank], self._paths, self._launch)
            self._observer.alert(f"{error.cause}; the other machines continue if they can", FAULT)
        return gone

    def _lost(self) -> dict[int, MachineError]:
        """Return lost ranks, and ranks that are away and cannot take part again: they have not yet
        joined, or the others have gone on without them."""
        away = self._launcher.away()
        begun = self._relay.joined if self._launch.joins else away
        late = {r: error for r, error in away.items() if r not in begun or r in self._relay.lost}
        return {**self._launcher.lost(), **late}

    def _left_to_itself(self, why: MachineError, code: int | None = None) -> _Ending:
        self._launcher.leave()
        return _Ending(RUNNING, why.exit_code if code is None else code, why)

    def _ending_of_foreign(self, codes: dict[int, int]) -> _Ending | None:
        """Return the ending of another framework's run, some of whose processes may never end."""
        deciding = self._launch.decides
        if all(rank in codes for rank in deciding):
            self._launcher.stop(_GRACE_OF_FAILURE, self._interrupts.asked)
            return _Ending("done", DONE)
        if deciding[0] in codes and self._stragglers_waited.over():
            return self._left_behind(codes)
        if 0 < len(codes) == len(self._ranks) - 1 and self._first_waited.over():
            return self._stop_for(stuck_first(deciding[0], self._paths, _PATIENCE_FOR_FIRST))
        return None

    def _stop_for(self, error: PhalanxError) -> _Ending:
        self._launcher.stop(_GRACE_OF_FAILURE, self._interrupts.asked)
        return _Ending("failed", error.exit_code, error)

    def _stopped(self, code: int) -> _Ending:
        self._launcher.stop(STOP_SECONDS, self._interrupts.insisted)
        if alone := self._launcher.alone():
            return self._left_to_itself(alone, code)
        return _Ending("stopped", code)

    def _failed(self, codes: dict[int, int]) -> _Ending:
        """Stop the others and name the worker whose failure came first."""
        self._launcher.stop(_GRACE_OF_FAILURE, self._interrupts.asked)
        self._relay.drain()
        if not failure.is_clear(codes):
            # A worker that failed meanwhile may be the cause, but not one that our signal ended.
            codes = {**{r: c for r, c in self._launcher.codes().items() if c > 0}, **codes}
        rank = failure.culprit(codes)
        if rank is None:
            rank = next(iter(failure.failures(codes)))
        told = failure.told_by(rank, self._paths)
        error = failure.explain(rank, codes[rank], self._paths, self._launch)
        lost = {**self._launcher.lost(), **self._launcher.away()}
        if rank in lost or (lost and codes[rank] == STOPPED_CODE):
            # The machine was lost with its worker, and the others ended because of that.
            error = lost.get(rank) or next(iter(lost.values()))
        elif not self._launch.joins:
            error, told = why_failed(self._launch, rank, codes[rank], self._paths)
        if error.exit_code not in (BAD_INPUT, MACHINE_FAILED):  # these errors are complete
            shown = [line for line in told if line != f"hint: {error.remedy}"]
            for line in shown[1:] and shown:  # a single line is in the error
                self._observer.failure(rank, line)
        return _Ending("failed", error.exit_code, error)

    def _left_behind(self, codes: dict[int, int]) -> _Ending:
        self._launcher.stop(_GRACE_OF_FAILURE, self._interrupts.asked)
        names = " and ".join(f"worker {rank}" for rank in self._ranks if rank not in codes)
        late = f"{_PATIENCE_FOR_STRAGGLERS:.0f} s after the first worker was done"
        self._observer.output(self._ranks[0], f"phalanx: stopped {names}, still running {late}")
        return _Ending("done", DONE)

    def _write_down(self, summary: Summary) -> MachineError | None:
        """Write the summary; return an error instead of raising it: the summary is still shown."""
        try:
            write_whole(self._paths.summary, summary.to_json() + "\n")
        except OSError as error:
            return failure.cannot_write(self._paths.summary, error)
        return None
