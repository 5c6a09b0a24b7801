from __future__ import annotations

import dataclasses
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from launch_support import Recorder, make_job, run, wait_until, write_script

from phalanx.core import settings
from phalanx.core.context import current
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.launch.run.controller import execute


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


def test_each_worker_takes_the_startup_steps_in_its_first_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []

    def step(*, adopt: bool) -> None:
        inside = current()
        seen.append(inside.environment[settings.RANK] if inside else None)

    monkeypatch.setattr("phalanx.launch.launchers.inprocess.run_startup", step)
    outcome, _, _ = run(tmp_path, "join()\nfinish()", launcher="inprocess")
    assert outcome.exit_code == 0
    assert sorted(seen) == ["0", "1"]
    assert current() is None


def test_a_run_repeats_from_its_seed_and_differs_from_another(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
import torch
join()
arena = current().hub.arena(rank)
for step in range(30):
    with arena.lock(0):
        with (paths.files / "order").open("a") as file:
            file.write(f"{rank} ")
assert torch.get_num_threads() == 1
finish()
""",
    )
    orders = []
    for number, seed in enumerate([7, 7, 8]):
        job = make_job(script, 3, "inprocess")
        job = dataclasses.replace(job, settings=RunSettings(seed=seed))
        paths = RunPaths(tmp_path / f"run{number}").make()
        assert execute(job, paths, Recorder()).exit_code == 0
        orders.append((paths.files / "order").read_text().split())
    assert sorted(orders[0]) == sorted(["0", "1", "2"] * 30)
    assert orders[0] == orders[1] != orders[2]


def test_torch_computes_as_before_when_the_run_is_over(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    outcome, _, _ = run(tmp_path, "join()\nfinish()", launcher="inprocess")
    assert outcome.exit_code == 0
    assert torch.get_num_threads() == 2


def test_workers_that_wait_for_each_other_are_told_so(tmp_path: Path) -> None:
    outcome, seen, _ = run(
        tmp_path,
        """
join()
arena = current().hub.arena(rank)
if rank == 0:
    arena.barrier()
arena.await_(lambda: False)
""",
        launcher="inprocess",
    )
    assert outcome.exit_code == 1
    told = "rank 0 in a barrier, rank 1 waits to be admitted"
    assert any(told in line for _, line in seen.failures)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_worker_that_cannot_begin_frees_those_who_wait_for_its_first_turn(
    tmp_path: Path,
) -> None:
    (tmp_path / "run" / "logs" / "rank-1.log").mkdir(parents=True)
    outcome, _, _ = run(tmp_path, "join()\nfinish()", launcher="inprocess")
    assert outcome.exit_code != 0
    assert outcome.summary.exit_codes == [75, 1]
