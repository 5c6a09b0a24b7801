from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from launch_support import run, wait_until

from phalanx.core import settings
from phalanx.core.context import current
from phalanx.core.errors import InputError


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = sys.stdout, sys.stderr, list(sys.argv), list(sys.path)
    yield
    assert (sys.stdout, sys.stderr, sys.argv, sys.path) == before
    assert wait_until(lambda: not _rank_threads())


def _rank_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("phalanx-rank")]


def test_ranks_are_threads_that_meet_and_keep_their_output_apart(tmp_path: Path) -> None:
    outcome, seen, paths = run(
        tmp_path,
        """
import threading
hub = current().hub
join()
mine = rank
hub.arena(rank).barrier()
print("rank", mine, threading.current_thread().name, __name__, Path(__file__).name, sys.argv[1:])
print("to stderr", file=sys.stderr)
finish()
""",
        launcher="inprocess",
    )
    assert outcome.exit_code == 0 and outcome.summary.exit_codes == [0, 0]
    line = "rank {0} phalanx-rank-{0} __main__ train.py ['--flag', 'two words']"
    assert seen.lines == [(0, line.format(0)), (0, "to stderr")]
    assert paths.log_of(1).read_text().splitlines() == [line.format(1), "to stderr"]


def test_a_failing_rank_frees_those_who_wait_for_it(tmp_path: Path) -> None:
    outcome, seen, _ = run(
        tmp_path,
        """
join()
if rank == 1:
    raise KeyError("lost")
current().hub.arena(rank).barrier()
""",
        launcher="inprocess",
    )
    assert outcome.exit_code == 1 and outcome.error is not None
    assert "worker 1 failed: KeyError: 'lost'" in outcome.error.cause
    assert outcome.summary.exit_codes == [75, 1]
    assert [line for _, line in seen.failures].count("KeyError: 'lost'") == 1


def test_wrong_input_exits_2(tmp_path: Path) -> None:
    outcome, seen, _ = run(
        tmp_path,
        "from phalanx.core.errors import InputError\nraise InputError('what', 'do this')",
        launcher="inprocess",
    )
    assert outcome.exit_code == 2 and isinstance(outcome.error, InputError)
    assert (outcome.error.cause, outcome.error.remedy) == ("what", "do this")
    assert seen.lines == [] and seen.failures == []


def test_ctrl_c_interrupts_threads_that_wait_and_threads_that_work(tmp_path: Path) -> None:
    handler = signal.getsignal(signal.SIGINT)
    outcome, _, _ = run(
        tmp_path,
        """
join()
if rank == 0:
    current().hub.arena(rank).barrier()
os.kill(os.getpid(), signal.SIGINT)
while True:
    time.sleep(0.01)
""",
        launcher="inprocess",
    )
    assert outcome.exit_code == 130 and outcome.summary.status == "stopped"
    assert outcome.summary.exit_codes == [75, 143]
    assert signal.getsignal(signal.SIGINT) is handler


def test_startup_steps_are_taken_once_as_the_first_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []

    def step() -> None:
        inside = current()
        seen.append(inside.environment[settings.RANK] if inside else None)

    monkeypatch.setattr("phalanx.launch.inprocess.run_startup", step)
    outcome, _, _ = run(tmp_path, "join()\nfinish()", launcher="inprocess")
    assert outcome.exit_code == 0
    assert seen == ["0"]
    assert current() is None
