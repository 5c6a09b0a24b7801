"""A worker that makes no step is named with where it is; those that wait for it are not blamed."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import msgspec
import pytest
from launch_support import Recorder, make_job, start_without_torch, write_script
from made_events import finished, joined, steps
from made_stragglers import figures, made_run

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.link.progress_notes import EACH_WORD, FIRST_WORD
from phalanx.launch.run import hangs
from phalanx.launch.run.controller import execute
from phalanx.launch.run.event_tail import Relay
from phalanx.launch.run.hangs import (
    AS_SHOWN,
    LEAST,
    LEAST_BETWEEN,
    SILENT,
    STANDSTILL,
    Hangs,
    what_it_does,
)
from phalanx.observe.events.event_types import Alive, EpochDone, FrozenWorker, encode

WAITS = ["phalanx/sync/arena/shm_arena.py:41 wait", "phalanx/train/step/stepper.py:9 step",
         "/home/me/train.py:7 <module>"]  # fmt: skip
LOSS = ["/usr/lib/python3.11/threading.py:3 acquire", "/home/me/train.py:42 slow_loss",
        "/home/me/train.py:50 <module>"]  # fmt: skip


class Run:
    """Two workers that have made ten steps, as their controller sees them."""

    def __init__(self, folder: Path) -> None:
        self.paths = RunPaths(folder).make()
        self.now = 0.0
        self.hangs = Hangs(self.paths, lambda: self.now)
        for rank in (0, 1):
            self.hangs.take(joined(rank, machine=f"m{rank + 1}", pid=100 + rank))
            self.hangs.take(steps(rank, 10))

    def later(self, seconds: float, **stacks: list[str]) -> list[str]:
        """What is said so much later, if these workers show these stacks meanwhile."""
        for _ in range(2):
            self.now += seconds / 2
            for name, stack in stacks.items():
                busy = 0.0 if stack == WAITS else 1.0
                self.hangs.take(Alive(rank=int(name[-1]), stack=stack, busy=busy))
        return [text.partition(" (stacks: ")[0] for text in self.hangs.news()]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path / "run")


def test_the_one_that_does_not_wait_is_named_once(run: Run) -> None:
    assert run.later(LEAST - 1, w0=WAITS, w1=LOSS) == []
    assert run.later(1) == [
        "worker 1 on m2 has not finished step 11 for 10 s: it computes in train.py:42 "
        "(in slow_loss); worker 0 on m1 waits for that"
    ]
    assert run.later(60) == []
    text = run.paths.stacks.read_text()
    assert all(frame in text for frame in (*WAITS, *LOSS))
    for rank in (0, 1):
        run.hangs.take(steps(rank, 1, first=10))
    assert run.later(0) == ["worker 1 on m2 goes on, after 70 s"]


def test_all_that_hang_are_named_together(run: Run) -> None:
    (told,) = run.later(LEAST, w0=LOSS, w1=LOSS)
    assert told.startswith("worker 0 on m1 and worker 1 on m2 have not finished step 11")


def test_a_stopped_worker_is_found_on_its_machine(run: Run) -> None:
    sample = msgspec.structs.replace(
        figures(made_run(count=50), "m2")[0],
        frozen=[FrozenWorker(pid=101, state="T", stack=LOSS)],
    )
    run.paths.machine("m2").write_bytes(b'{"cut":\n' + msgspec.json.encode(sample) + b"\n")
    (told,) = run.later(LEAST, w0=WAITS)
    assert "a signal stopped it (kill -CONT 101 lets it go on)" in told
    assert "before that it was in train.py:42 (in slow_loss); worker 0 on m1 waits" in told


def test_long_steps_that_were_shown_are_no_hang(run: Run) -> None:
    run.now = 8.0
    for rank in (0, 1):
        run.hangs.take(steps(rank, 1, first=10))
    assert run.later(AS_SHOWN * 8 - 1, w0=WAITS, w1=LOSS) == []
    assert len(run.later(1)) == 1


def test_work_between_epochs_and_evaluation_have_more_time(run: Run) -> None:
    done = {"time": 0.0, "epoch": 0, "seconds": 1.0, "samples": 1, "rate": None}
    run.hangs.take(EpochDone(rank=1, train_loss=None, train_accuracy=None, **done))
    assert run.later(LEAST_BETWEEN - 2, w0=WAITS, w1=LOSS) == [], "one waits for the other"
    assert len(run.later(2)) == 1
    again = Run(run.paths.folder)
    evaluates = ["phalanx/train/figures/evaluation.py:9 evaluate", *LOSS[1:]]
    assert again.later(LEAST_BETWEEN - 2, w0=WAITS, w1=evaluates) == []
    assert "in train.py:42" in again.later(2)[0]


def test_steps_that_were_lost_with_a_stopped_worker_were_made(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    run.hangs.take(joined(1, machine="m2", pid=101))  # none of its steps has come
    (told,) = run.later(LEAST, w0=WAITS, w1=LOSS)
    assert told.startswith("worker 1 on m2 has not finished step 1 ")


def test_neither_sleep_nor_absence_nor_the_end_is_a_hang(run: Run) -> None:
    run.now = 100.0
    run.hangs.slept(100.0)
    assert run.later(0) == []
    run.now += 100.0
    run.hangs.excuse([0, 1])
    assert run.later(0) == []
    for rank in (0, 1):
        run.hangs.take(finished(rank))
    assert run.later(1000) == []


@pytest.mark.parametrize(
    ("stack", "busy", "told"),
    [
        (["torch/nn/modules/linear.py:1 forward", *LOSS[1:]], 0.9, "it computes in train.py:42"),
        (LOSS, 0.0, "it is blocked in train.py:42"),
        ([], None, "it has not shown where it is"),
    ],
)
def test_what_a_worker_does(stack: list[str], busy: float | None, told: str) -> None:
    found = what_it_does(stack, busy, None)
    assert found is not None
    assert found.startswith(told)


def test_native_code_that_holds_all_threads() -> None:
    found = what_it_does(LOSS, None, FrozenWorker(pid=1, state="R", stack=LOSS))
    assert found is not None
    assert found.startswith("native code lets no Python thread run (state R), in train.py:42")


def test_workers_that_do_not_join_are_named_until_they_do(tmp_path: Path) -> None:
    now = 0.0
    begun = Hangs(RunPaths(tmp_path / "run").make(), lambda: now, awaited=[0, 1])
    begun.take(joined())
    told = []
    for now in (FIRST_WORD - 1, FIRST_WORD, FIRST_WORD + 1, FIRST_WORD + EACH_WORD):  # noqa: B007
        begun.take(Alive(rank=0))
        told.append([text.split(" for ")[1] for text in begun.news() if "to start" in text])
    assert told == [[], ["worker 1 to start training"], [], ["worker 1 to start training"]]
    begun.take(joined(1))
    now += EACH_WORD
    assert not [text for text in begun.news() if "to start" in text]


def test_a_silence_is_told_once_and_so_is_its_end(run: Run) -> None:
    """Between epochs, where a worker that gives signs of life has more time."""
    done = {"time": 0.0, "epoch": 0, "seconds": 1.0, "samples": 1, "rate": None}
    for rank in (0, 1):
        run.hangs.take(EpochDone(rank=rank, train_loss=None, train_accuracy=None, **done))
    assert run.later(SILENT - 1, w0=WAITS) == []
    assert run.later(1, w0=WAITS) == [
        "worker 1 on m2 has not finished step 11 for 12 s: it sends nothing: it may be stopped, "
        "short of memory, or stuck"
    ]
    assert run.later(1, w0=WAITS) == []
    assert run.later(0, w1=WAITS) == ["worker 1 on m2 goes on, after 13 s"]
    run.hangs.slept(SILENT)
    assert run.later(SILENT, w0=WAITS) == [], "what nobody listened to is no silence"
    assert len(run.later(SILENT, w0=WAITS)) == 1
    run.hangs.excuse([1])
    assert run.later(1, w0=WAITS) == [], "a machine that is away does not go on"


def test_a_standstill_is_longer_than_any_pause_of_the_run(run: Run) -> None:
    run.now += STANDSTILL + 1
    assert run.hangs.stands_still()
    run.hangs.take(steps(0, 1, first=10))
    run.now += 1.5 * STANDSTILL
    assert not run.hangs.stands_still(), "its steps take that long"
    run.hangs.slept(1.5 * STANDSTILL)
    run.now += 2 * STANDSTILL
    assert not run.hangs.stands_still(), "this computer slept"
    run.now += 3.0
    assert run.hangs.stands_still()


def test_a_rank_that_joins_again_has_not_finished(tmp_path: Path) -> None:
    paths = RunPaths(tmp_path / "run").make()
    relay = Relay(paths, [0], Recorder())
    for event, ended in ((joined(), False), (finished(), True), (joined(), False)):
        with paths.events_of(0).open("ab") as file:
            file.write(encode(event))
        relay.poll()
        assert (relay.joined, relay.finished) == ({0}, {0} if ended else set())


STOPS = """
from phalanx.observe.events import emit
emit.SIGN_OF_LIFE = 0.25
writer = emit.EventWriter(paths.events_of(rank), rank)
join()
if rank == 1:
    os.kill(os.getpid(), signal.SIGSTOP)
    (paths.files / "back").touch()
while not (paths.files / "back").exists():
    time.sleep(0.05)
time.sleep(1.0)  # so that both give a sign of life
writer.close()
finish()
"""


class Waker(Recorder):
    """Lets a stopped worker go on as soon as it is told of it."""

    def __init__(self, files: Path) -> None:
        super().__init__()
        self._files = files
        self.told: list[str] = []

    def note(self, text: str) -> None:
        self.told.append(re.sub(r"\d+ s\b", "N s", text))
        if "has not finished" in text:
            os.kill(int((self._files / "pid-1").read_text()), signal.SIGCONT)


def test_a_stopped_worker_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start_without_torch(monkeypatch)
    monkeypatch.setattr(hangs, "SILENT", 1.5)
    paths = RunPaths(tmp_path / "run").make()
    waker = Waker(paths.files)
    outcome = execute(make_job(write_script(tmp_path, STOPS), 2), paths, waker)
    assert outcome.exit_code == 0
    stopped, again = waker.told
    assert stopped.startswith("worker 1 on here has not finished step 1 for N s: ")
    assert again == "worker 1 on here goes on, after N s"
