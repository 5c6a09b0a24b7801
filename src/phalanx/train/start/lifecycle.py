"""Reports a worker's events from joining to its end, and stops the worker when asked."""

from __future__ import annotations

import _thread
import contextlib
import os
import platform
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType

import torch

from phalanx.core import stopping
from phalanx.core.context import call_at_end
from phalanx.core.errors import SCRIPT_FAILED, RunStopped, has_lost_a_machine
from phalanx.core.script.startup import script_seconds
from phalanx.core.version import __version__
from phalanx.data.load import LOADED
from phalanx.observe.events.emit import EventWriter
from phalanx.observe.events.event_types import Data, Finished, Joined, PhaseDone
from phalanx.train.start.environment import Environment, between_machines, saves_checkpoints

_told = threading.local()  # what this worker has reported; a script may train several times


class Lifecycle:
    """Emits the events around training: joined, the phases, finished."""

    def __init__(self, environment: Environment, writer: EventWriter) -> None:
        self.over, self._failed = False, 0
        self.training: int = getattr(_told, "trainings", 0)
        """The number of this training among those of the script, from 0."""
        _told.trainings = self.training + 1
        self.epochs_before: int = getattr(_told, "epochs", 0)
        """Epochs of models that this worker trained before, in the same script."""
        self._environment, self._writer, self._clock = environment, writer, environment.clock
        self._rank = environment.rank
        self._began, self._script = self._clock.now(), script_seconds()
        phases = ("read", "train", "evaluate", "checkpoint", "write")
        self._spent = dict.fromkeys(phases, 0.0)
        """Seconds of each phase so far; ``write``: of writing checkpoints beside the training."""
        self._stops_in_order = False
        """Whether this worker has to inform others, or to save a checkpoint, before it ends."""
        self.stopped = False
        """Whether this worker was asked to stop, and trains on until it can end in order."""
        self._obeyed = False
        self._process, self._hears = os.getpid(), False
        if environment.launched:
            call_at_end(self._at_exit)
            self._hears = (
                not environment.thread and threading.current_thread() is threading.main_thread()
            )
            if self._hears:
                signal.signal(signal.SIGTERM, self._on_terminate)

    def joined(
        self, *, precision: str, strategy: str, phase: str, parameters: int, notes: list[str]
    ) -> None:
        environment, now = self._environment, self._clock.now()
        # A worker with nothing to save, and none on other machines to inform, may end at once.
        self._stops_in_order = saves_checkpoints(environment) or between_machines(environment)
        known: int = getattr(_told, "reads", 0)
        mine = [r for r in LOADED if r.thread == threading.get_ident()][known:]
        _told.reads = known + len(mine)
        for record in mine:
            name, count, sums = record.name, record.samples, dict(record.checksums)
            began = record.began if environment.virtual is None else now
            self._writer.emit(
                Data(time=began, rank=self._rank, name=name, samples=count, checksums=sums)
            )
        if environment.virtual is None:  # nothing before the first step takes virtual time
            self._phase("read", sum(r.seconds for r in mine))
        if not getattr(_told, "started", False) and environment.virtual is None:
            _told.started = True
            read = sum(r.seconds for r in LOADED if r.thread == threading.get_ident())
            launched = environment.started or self._began
            # The script prepares its data before it joins: only the rest of the time is our start.
            self._phase("start", max(0.0, now - launched - self._script))
            self._phase("prepare", max(0.0, self._script - read))
        self._writer.emit(
            Joined(
                time=now,
                wall=time.time() - environment.skew,
                rank=self._rank,
                workers=environment.workers,
                machine=environment.machine,
                pid=os.getpid(),
                device=str(environment.device),
                threads=torch.get_num_threads(),
                precision=precision,
                strategy=strategy,
                phase=phase,
                parameters=parameters,
                seed=environment.settings.seed,
                versions={
                    "phalanx": __version__,
                    "torch": str(torch.__version__),
                    "python": platform.python_version(),
                },
                notes=notes,
            )
        )
        self._writer.flush()  # at once: that this worker joined must never be lost

    def spend(self, phase: str, seconds: float) -> None:
        """Add ``seconds`` to a phase; a script may evaluate after its training, too."""
        if self.over:
            self._phase(phase, seconds)
        else:
            self._spent[phase] += seconds

    def _phase(self, name: str, seconds: float) -> None:
        now = self._clock.now()
        self._writer.emit(PhaseDone(time=now, rank=self._rank, phase=name, seconds=seconds))

    def end(self, status: str, bytes_sent: int = 0, epochs: int = 0) -> None:
        """End the training; everything is on disk when this returns."""
        if self.over:
            return
        self.over = True
        _told.epochs = self.epochs_before + epochs
        for name, seconds in self._spent.items():
            self._phase(name, seconds)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        self._writer.emit(
            Finished(
                time=self._clock.now(),
                rank=self._rank,
                status=status,
                bytes_sent=bytes_sent,
                peak_memory=peak,
            )
        )
        self._writer.flush()

    def fail(self, line: str, code: int = SCRIPT_FAILED) -> None:
        """Report a failure after the script has left its loop, where no exception reaches it."""
        print(f"phalanx: {line}", file=sys.stderr, flush=True)
        if self._environment.paths is not None:
            with contextlib.suppress(OSError):
                self._traceback.write_text(f"{line}\n", encoding="utf-8")
        self._failed = code

    @property
    def _traceback(self) -> Path:
        environment, paths = self._environment, self._environment.paths
        assert paths is not None
        number = environment.rank if environment.process is None else environment.process
        return paths.traceback_of(number)

    def broken(self) -> bool:
        """Whether this worker's script has failed or was stopped."""
        environment = self._environment
        failed = environment.paths is not None and self._traceback.exists()
        # Python keeps an uncaught exception; a script that another launcher runs leaves no file.
        uncaught = not environment.thread and getattr(sys, "last_value", None) is not None
        return self._has_stopped or failed or uncaught or has_lost_a_machine()

    def _at_exit(self) -> None:
        if self._has_stopped:
            self.end("stopped")
        else:
            self.end("failed")  # unless it has ended well already
            if self._failed and not self._environment.thread:
                self._writer.close()
                sys.stdout.flush()
                os._exit(self._failed)  # no exception reaches the exit code any more
        self._writer.close()  # not before, because a script may log after its training

    # -- being stopped -----------------------------------------------------------------------

    def obey(self) -> None:
        """Note that the run is stopping, also if only others were asked: do not interrupt it."""
        stopping.ask()
        self.stopped = self._obeyed = True
        self._be_deaf()

    @property
    def _has_stopped(self) -> bool:
        return self.stopped or (not self._environment.thread and stopping.asked())

    def _on_terminate(self, _signal: int, _frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            return  # a process that reads data for this worker ends with it
        again = self.stopped
        stopping.ask()
        self.stopped = True
        if again or self.over or not self._stops_in_order:
            self._be_deaf()
            raise RunStopped
        # Not by ``threading``, whose locks the interrupted code may hold.
        _thread.start_new_thread(self._insist, ())

    def _be_deaf(self) -> None:
        """Ignore SIGTERM: this worker is ending already, and a late signal would cut that short."""
        if self._hears:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def _insist(self) -> None:
        """Interrupt a script that does not stop in time, because it evaluates or sleeps."""
        time.sleep(self._environment.stop_seconds)
        main = threading.main_thread().ident
        if not self._obeyed and not self.over and main is not None:
            signal.pthread_kill(main, signal.SIGTERM)
