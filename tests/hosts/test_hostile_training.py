"""Strangers at every port of a training: it ends as it would have ended without them."""

from __future__ import annotations

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import until
from hostile import attack
from lab_machines import run_in
from worker_runs import Workers, start_workers

from phalanx.core.settings import RunSettings
from phalanx.lab.lab import Lab

SCRIPT = str(Path(__file__).with_name("long_script.py"))
FOR_EVER = "1000000"


@dataclass(frozen=True)
class Port:
    address: str
    number: int
    owner: str
    """The name of the process, as the kernel has it."""


def of_the_run(lab: Lab, machine: str) -> list[Port]:
    """Every TCP and UDP port that is open in a machine, but for its sshd's."""
    found = []
    for line in run_in(lab, machine, ["ss", "-ltunpH"]).splitlines():
        local = line.split()[4]
        address, _, number = local.rpartition(":")
        owner = re.search(r'users:\(\("([^"]+)"', line)
        found.append(Port(address.strip("[]"), int(number), owner.group(1) if owner else ""))
    return [port for port in found if port.owner != "sshd"]


@dataclass(frozen=True)
class Held:
    """What the processes of a machine hold."""

    files: int
    threads: int


def _begin(lab: Lab, folder: Path, strategy: str, epochs: str = FOR_EVER) -> Workers:
    words = [SCRIPT, "--", str(folder / "enough"), epochs]
    serving = ["m3"] if strategy != "allreduce" else []
    fixed = RunSettings(strategy=strategy, balance="off")  # shares by speed would round otherwise
    return start_workers(
        lab, folder, words, on=["m1", "m2", "m2"], serving=serving, PHALANX_SETTINGS=fixed.to_json()
    )


def _await_begin(workers: Workers) -> None:
    training = workers.each[:3]
    until(lambda: all("has begun" in w.said or w.process.poll() is not None for w in training), 90)
    assert all(worker.process.poll() is None for worker in workers.each), workers.words()


def _ports(lab: Lab) -> dict[str, list[Port]]:
    return {m.name: found for m in lab.machines if (found := of_the_run(lab, m.name))}


def _held(lab: Lab) -> Held:
    files = threads = 0
    for machine in lab.machines:
        words = ["sh", "-c", "ls -d /proc/[0-9]*/fd/* | wc -l; ls -d /proc/[0-9]*/task/* | wc -l"]
        counts = run_in(lab, machine.name, words).split()
        files, threads = files + int(counts[0]), threads + int(counts[1])
    return Held(files, threads)


def _attack_all(ports: list[Port], tries: int) -> Counter[str]:
    """All at once; ``tries`` in all."""
    each = -(-tries // len(ports))
    with ThreadPoolExecutor(len(ports)) as strangers:
        attacks = [
            strangers.submit(attack, port.address, port.number, each, seed)
            for seed, port in enumerate(ports)
        ]
        return sum((one.result() for one in attacks), Counter())


def _losses(workers: Workers) -> list[str]:
    return [line for w in workers.each for line in w.said.splitlines() if line.startswith("loss")]


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("strategy", "tries"),
    [
        ("allreduce", 300),
        pytest.param("allreduce", 5000, marks=pytest.mark.slow),
        pytest.param("async", 5000, marks=pytest.mark.slow),
    ],
)
def test_strangers_at_every_port_change_nothing(
    machines: Lab, tmp_path: Path, strategy: str, tries: int
) -> None:
    with _begin(machines, tmp_path, strategy) as workers:
        _await_begin(workers)
        ports = _ports(machines)
        for machine, found in ports.items():
            own = machines.machine(machine).address
            assert {port.address for port in found} == {own}, found
        everyone = [port for found in ports.values() for port in found]
        assert len(everyone) >= len(workers.each) + 1, everyone  # one each, and the home
        before = _held(machines)
        counts = _attack_all(everyone, tries)
        print(f"{strategy}: {len(everyone)} ports, {counts.total()} counted: {dict(counts)}")
        assert not counts["welcomed"] and not counts["no answer in time"], counts
        few = min(counts.values()) // 2  # the run's own: a timer's thread, a file being written
        until(lambda: _grown(before, _held(machines)) <= few, 30.0)
        assert _ports(machines) == ports, "the same ports are open, and no other"
        (tmp_path / "enough").touch()
        workers.finish()


def _grown(before: Held, after: Held) -> int:
    """Ends of connections that strangers left open go when the listener's patience ends."""
    return max(after.files - before.files, after.threads - before.threads)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_synchronous_training_under_attack_has_the_same_loss(
    machines: Lab, tmp_path: Path
) -> None:
    with _begin(machines, tmp_path / "quiet", "allreduce", "150") as workers:
        quiet = _losses(workers.finish())
    with _begin(machines, tmp_path / "loud", "allreduce", "150") as workers:
        until(lambda: len(_ports(machines)) == 2, 60.0)
        while any(worker.process.poll() is None for worker in workers.each):
            everyone = [port for found in _ports(machines).values() for port in found]
            if everyone:
                _attack_all(everyone, 100)
        loud = _losses(workers.finish())
    assert len(quiet) == 3 and len(set(quiet)) == 1
    assert loud == quiet
