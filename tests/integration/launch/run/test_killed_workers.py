"""A worker is killed: workers of other machines may go on, and what they say decides."""

from __future__ import annotations

from pathlib import Path

import msgspec
from launch_support import Recorder, make_job, without_torch, write_script

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.launch.launcher import Launch
from phalanx.launch.launchers.local import LocalLauncher
from phalanx.launch.run.controller import Controller, RunOutcome
from phalanx.launch.run.interrupts import Interrupts

__all__ = ["without_torch"]
DIES = """
from phalanx.observe.events.event_types import WorkerLost
join()
while not all((paths.files / f"pid-{n}").exists() for n in range(4)):
    time.sleep(0.01)
if rank == 2:
    time.sleep(0.5)  # until the controller has heard of all
    (paths.files / "dies").touch()
    os.kill(os.getpid(), signal.SIGKILL)
while not (paths.files / "dies").exists():
    time.sleep(0.01)
if rank == 3:
    sys.exit(75)  # it shared the memory of the one that was killed
"""
GO_ON = """
for worker in (2, 3):
    tell(WorkerLost(time=time.monotonic(), rank=rank, worker=worker, machine="m2", address=""))
time.sleep(2.0)  # longer than the controller looks for the cause of a failure
finish()
"""
CANNOT = """
time.sleep(0.5)  # a step
paths.traceback_of(rank).write_text("worker 2 on m2 is gone")
sys.exit(3)
"""


LAST_WORDS = """
if rank != 0:
    finish()
    (paths.files / f"done-{rank}").touch()
    sys.exit(0)
while not all((paths.files / f"done-{n}").exists() for n in range(1, 4)):
    time.sleep(0.01)
time.sleep(0.5)
os.kill(os.getpid(), signal.SIGKILL)  # in its last evaluation, for example
"""


class Notes(Recorder):
    """Remembers what is said besides."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def _run(folder: Path, body: str, machines: list[str], dies: str = DIES) -> tuple[RunOutcome, str]:
    """With workers that count as those of ``machines``, by rank."""
    notes, paths, launcher = Notes(), RunPaths(folder / "run").make(), LocalLauncher()
    with Interrupts() as interrupts:
        job = make_job(write_script(folder, dies + body), len(machines))
        job = launcher.open(job, paths, notes.note, interrupts.asked)
        launch: Launch = launcher.prepare(job, paths)
        workers = [
            msgspec.structs.replace(worker, machine=name)
            for worker, name in zip(launch.workers, machines, strict=True)
        ]
        launch = msgspec.structs.replace(launch, workers=workers)
        outcome = Controller(launcher, launch, paths, notes, interrupts).run()
    return outcome, "\n".join(notes.notes)


def test_workers_of_other_machines_go_on(tmp_path: Path) -> None:
    outcome, said = _run(tmp_path, GO_ON, ["m1", "m1", "m2", "m2"])
    assert outcome.exit_code == 0 and outcome.error is None
    assert outcome.summary.exit_codes == [0, 0, -9, 75]
    assert said.count("worker 2 on m2 was killed by SIGKILL") == 1
    assert "the other machines continue if they can" in said


def test_where_they_cannot_the_killed_worker_is_the_cause(tmp_path: Path) -> None:
    outcome, _ = _run(tmp_path, CANNOT, ["m1", "m1", "m2", "m2"])
    assert outcome.exit_code == 1 and outcome.error is not None
    assert "worker 2 on m2 was killed by SIGKILL" in outcome.error.cause


def test_a_worker_that_is_killed_after_the_others_have_finished_is_a_failure(
    tmp_path: Path,
) -> None:
    outcome, _ = _run(tmp_path, LAST_WORDS, ["m1", "m2", "m3", "m4"], dies="join()\n")
    assert outcome.exit_code == 1 and outcome.error is not None
    assert "worker 0 on m1 was killed by SIGKILL" in outcome.error.cause


FIRST_DIES = DIES.replace("rank == 2", "rank == 0").replace("rank == 3", "rank == 1")
GO_ON_WITHOUT_THE_FIRST = GO_ON.replace("(2, 3)", "(0, 1)")


def test_a_run_whose_first_worker_is_killed_before_it_wrote_the_model_has_failed(
    tmp_path: Path,
) -> None:
    machines = ["m1", "m1", "m2", "m2"]
    outcome, _ = _run(tmp_path, GO_ON_WITHOUT_THE_FIRST, machines, dies=FIRST_DIES)
    assert outcome.exit_code == 3 and outcome.error is not None
    assert "its model did not arrive here: worker 0 on m1 was killed" in outcome.error.cause
    assert "phalanx resume" in (outcome.error.remedy or "")
    assert outcome.summary.status == "failed"
