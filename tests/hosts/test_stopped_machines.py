"""Workers on several machines that are told to stop, one after another: all save and end in order,
and what goes on later ends where a run that was never stopped ends."""

from __future__ import annotations

import shutil
import signal
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from own_workers import folder_on, start_own, tell, until
from trained import assert_same_model, model_of

from phalanx.lab.lab import Lab
from phalanx.observe.events.event_types import Finished, read_events
from phalanx.train.checkpoint import checkpoint_index as shelf
from phalanx.train.checkpoint.resuming import Resumed

SCRIPT = str(Path(__file__).with_name("stopped_script.py"))
EPOCHS, SAMPLES = 24, 480
STOPPED = 143
BETWEEN = 0.3  # seconds from telling one worker to telling the next

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def _run(
    lab: Lab, folder: Path, on: Sequence[str], strategy: str, resume: Path | None = None
) -> Path:
    """To its end; returns what the first machine has of it."""
    folder.mkdir(exist_ok=True)
    words, where = [SCRIPT, str(EPOCHS), str(folder)], str(resume) if resume else None
    with start_own(lab, folder, words, on=on, strategy=strategy, resume=where) as workers:
        workers.finish()
    return folder_on(folder, on[0]).folder


def _stopped(lab: Lab, folder: Path, on: Sequence[str], strategy: str, told: Sequence[int]) -> Path:
    """Stopped in mid-epoch by telling the workers ``told``; returns the newest checkpoint."""
    folder.mkdir()
    first, words = folder_on(folder, on[0]), [SCRIPT, str(EPOCHS), str(folder)]
    with start_own(lab, folder, words, on=on, strategy=strategy) as workers:
        until(lambda: (first.checkpoints / "000002").exists(), workers)
        for rank in told:
            tell(workers.each[rank])
            time.sleep(BETWEEN)
        codes = workers.wait(30.0)
        assert codes == [STOPPED] * len(on), workers.words()
        assert not any("phalanx:" in worker.said for worker in workers.each), workers.words()
    for rank, machine in enumerate(on):
        events = read_events(folder_on(folder, machine).events_of(rank))
        assert [e.status for e in events if isinstance(e, Finished)] == ["stopped"]
    checkpoint, manifest, remarks = shelf.newest_valid(first.checkpoints)
    assert not remarks
    assert manifest.number > 2 and len(manifest.files) == len(on) + 1
    for machine in set(on) - {on[0]}:
        assert not list(folder_on(folder, machine).checkpoints.glob("*"))
    return checkpoint


def _seen(*folders: Path) -> Counter[str]:
    lines = (p.read_text().splitlines() for f in folders for p in f.glob("seen-*"))
    return Counter(line for part in lines for line in part)


def _once() -> Counter[str]:
    return Counter({f"{e} {n}": 1 for e in range(EPOCHS) for n in range(SAMPLES)})


@pytest.mark.parametrize(
    "strategy", ["allreduce", "async", "ssp:bound=3", "localsgd:every=4", "allreduce@0.5/async"]
)
def test_a_run_that_was_stopped_goes_on(machines: Lab, tmp_path: Path, strategy: str) -> None:
    on = ["m1", "m2", "m2"]
    checkpoint = _stopped(machines, tmp_path / "stopped", on, strategy, told=[2, 1, 0])
    shipped = tmp_path / "shipped" / "checkpoints" / checkpoint.name
    shutil.copytree(checkpoint, shipped)
    ended = _run(machines, tmp_path / "rest", on, strategy, resume=shipped)
    assert _seen(tmp_path / "stopped", tmp_path / "rest") == _once()
    model_of(ended)
    if strategy in ("allreduce", "localsgd:every=4"):
        unbroken = _run(machines, tmp_path / "unbroken", on, strategy)
        assert_same_model(ended, unbroken, tolerance=0.0)


def test_who_is_told_tells_all_others(machines: Lab, tmp_path: Path) -> None:
    _stopped(machines, tmp_path / "run", ["m1", "m2", "m3"], "async", told=[2])


def test_goes_on_with_fewer_machines(machines: Lab, tmp_path: Path) -> None:
    checkpoint = _stopped(machines, tmp_path / "stopped", ["m1", "m2"], "allreduce", told=[0, 1])
    ended = _run(machines, tmp_path / "rest", ["m3", "m3"], "allreduce", resume=checkpoint)
    assert _seen(tmp_path / "stopped", tmp_path / "rest") == _once()
    unbroken = _run(machines, tmp_path / "unbroken", ["m1", "m2"], "allreduce")
    assert_same_model(ended, unbroken)


def test_checkpoints_go_on_without_a_lost_machine(machines: Lab, tmp_path: Path) -> None:
    first, words = folder_on(tmp_path, "m1"), [SCRIPT, "100000"]
    on = ["m1", "m2", "m3"]
    with start_own(machines, tmp_path, words, on=on, strategy="async") as workers:
        until(lambda: (first.checkpoints / "000001").exists(), workers)
        tell(workers.each[2], signal.SIGKILL)
        workers.each[2].process.wait(10.0)
        # One may have been under way.
        wanted = max(shelf.numbers(first.checkpoints)) + 3
        until(lambda: max(shelf.numbers(first.checkpoints)) >= wanted, workers, lost=1)
        tell(workers.each[1])
        assert workers.wait(30.0, workers.each[:2]) == [STOPPED] * 2, workers.words()
    checkpoint, _, remarks = shelf.newest_valid(first.checkpoints)
    assert not remarks
    assert Resumed(checkpoint, 2, 3, "async").private is None
    assert Resumed(checkpoint, 1, 3, "async").private


def test_each_machine_keeps_what_its_workers_wrote(machines: Lab, tmp_path: Path) -> None:
    _run(machines, tmp_path / "run", ["m1", "m2"], "async")
    first, second = (folder_on(tmp_path / "run", machine) for machine in ("m1", "m2"))
    assert first.model.exists() and first.best.exists()
    assert not second.model.exists() and not second.best.exists()
    assert [p.name for p in first.files.iterdir()] == ["from-0"]
    assert [p.name for p in second.files.iterdir()] == ["from-1"]
    assert "key False" in first.log_of(0).read_text()
