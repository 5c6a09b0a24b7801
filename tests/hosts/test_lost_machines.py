"""A machine is cut off or loses its power in mid-training: nothing hangs, and it is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from commands import until
from worker_runs import Worker, Workers, start_workers

from phalanx.lab.lab import Lab

SCRIPT = str(Path(__file__).with_name("long_script.py"))
FOR_EVER = "1000000"
SECONDS = 40.0
"""That the others have; what is promised are ten."""
WAYS = ["cut", "kill"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def _begin(
    lab: Lab, folder: Path, strategy: str, on: list[str], serving: list[str] | None = None
) -> Workers:
    words = [SCRIPT, "--strategy", strategy, "--", str(folder / "enough"), FOR_EVER]
    workers = start_workers(lab, folder, words, on=on, serving=serving or [])
    training = workers.each[: len(on)]
    try:
        until(lambda: all("has begun" in w.said or _ended(w) for w in training), 90.0)
        assert not any(map(_ended, training)), workers.words()
    except BaseException:
        workers.__exit__()
        raise
    return workers


def _ended(worker: Worker) -> bool:
    return worker.process.poll() is not None


def _assert_all_failed(workers: Workers, lost: str, lab: Lab) -> None:
    """Those on other machines end with code 3 and one line that names the lost one.

    A server knows nothing of what it serves: it ends when nobody is there any more.
    """
    others = [worker for worker in workers.each if worker.machine != lost]
    codes = workers.wait(SECONDS, others)
    for worker, code in zip(others, codes, strict=True):
        if worker.serves:
            assert code in (0, 3), f"{worker.log.name}: {code}\n{workers.words()}"
            continue
        assert code == 3, f"{worker.log.name}: {code}\n{workers.words()}"
        _assert_one_line(worker, f"{lost} ({lab.machine(lost).address})")


def _assert_one_line(worker: Worker, words: str) -> None:
    lines = [line for line in worker.said.splitlines() if words in line]
    assert len(lines) == 1, f"{worker.log.name}:\n{worker.said}"
    assert "Traceback" not in worker.said, worker.said


def _assert_nobody_left(workers: Workers, lab: Lab, lost: str, way: str) -> None:
    """Who was cut off ends by itself too; no machine has more processes than an idle one."""
    cut_off = workers.on(lost)
    for worker, code in zip(cut_off, workers.wait(SECONDS, cut_off), strict=True):
        assert code is not None, workers.words()
        assert way == "kill" or worker.serves or code == 3, workers.words()
    for machine in lab.machines:
        if machine.status != "killed":
            until(lambda name=machine.name: _trainings(lab, name) == [], 10.0)


def _trainings(lab: Lab, machine: str) -> list[str]:
    """Command lines of Phalanx's processes in a machine."""
    found = []
    for folder in lab.machine(machine).folders[:1]:
        for pid in (folder / "cgroup.procs").read_text().split():
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if re.search(r"phalanx(\.sync| worker)", line):
                found.append(line)
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("strategy", ["async", "ssp:bound=3", "async+topk", "dssp"])
def test_a_free_training_goes_on_without_it(
    fresh_machines: Lab, tmp_path: Path, strategy: str, way: str
) -> None:
    """The server is on a machine that stays."""
    lab, on = fresh_machines, ["m1", "m2", "m3"]
    with _begin(lab, tmp_path, strategy, on, serving=["m1"]) as workers:
        getattr(lab, way)("m2")
        others = [worker for worker in workers.each if worker.machine != "m2"]
        address = lab.machine("m2").address
        staying = [worker for worker in others if not worker.serves]
        until(lambda: all(address in w.said or _ended(w) for w in staying), SECONDS)
        assert not any(map(_ended, others)), workers.words()
        (tmp_path / "enough").touch()
        assert workers.wait(60.0, others) == [0] * len(others), workers.words()
        for worker in staying:
            _assert_one_line(worker, f"m2 ({address})")
        _assert_nobody_left(workers, lab, "m2", way)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("strategy", "lost"),
    [
        *(
            (strategy, m)
            for strategy in ("allreduce", "localsgd:every=4", "bsp")
            for m in ("m1", "m2")
        ),
        *((strategy, m) for strategy in ("async", "ssp:bound=3") for m in ("m1", "m3")),
    ],
)
def test_where_nobody_can_go_on_all_end(
    fresh_machines: Lab, tmp_path: Path, strategy: str, lost: str, way: str
) -> None:
    """In lockstep without any machine; freely without the first one, or that of the server."""
    lab, free = fresh_machines, strategy in ("async", "ssp:bound=3")
    on, serving = (["m1", "m2", "m2"], ["m3"]) if free else (["m1", "m2", "m3", "m3"], [])
    with _begin(lab, tmp_path, strategy, on, serving=serving) as workers:
        getattr(lab, way)(lost)
        _assert_all_failed(workers, lost, lab)
        _assert_nobody_left(workers, lab, lost, way)
