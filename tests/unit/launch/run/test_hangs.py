"""A worker that makes no step is named with where it is; those that wait for it are not blamed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from made_events import finished, joined, steps
from made_stragglers import figures, made_run

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.run.hangs import AS_SHOWN, LEAST, LEAST_BETWEEN, Hangs, what_it_does
from phalanx.observe.events.event_types import Alive, EpochDone, FrozenWorker

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
        """What is said so much later, if the workers have shown these stacks before."""
        self.now += seconds / 2
        for name, stack in stacks.items():
            busy = 0.0 if stack == WAITS else 1.0
            self.hangs.take(Alive(rank=int(name[-1]), stack=stack, busy=busy))
        self.now += seconds / 2
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
    assert run.later(0) == ["worker 1 on m2 makes steps again, after 70 s"]


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
    assert set(run.hangs.named) == {1}


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
    found = what_it_does([], None, FrozenWorker(pid=1, state="R", stack=LOSS))
    assert found is not None
    assert found.startswith("native code lets no Python thread run (state R), in train.py:42")
