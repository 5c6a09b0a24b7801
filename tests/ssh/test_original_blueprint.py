"""The optimiser's own blueprint, with passwords in it, which appear nowhere else."""

from __future__ import annotations

import json
import os
import secrets
import signal
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from lab_machines import MakeLab, run_in
from ssh_runs import Bench, Running, processes

from phalanx.lab.lab import Lab

PASSWORD = f"pass-{secrets.token_hex(8)}"
VENV = Path(sys.executable).parent


@pytest.fixture(scope="module")
def machines(lab: MakeLab) -> Iterator[Lab]:
    """Root of each logs in by a password, and finds a Python that has torch."""
    made = lab(5, password=PASSWORD)
    for machine in made.machines:
        line = f"export PATH={VENV}:$PATH"
        run_in(made, machine.name, ["sh", "-c", f"echo '{line}' > /run/home/.bashrc"])
    yield made


@pytest.fixture
def bench(machines: Lab, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(machines, tmp_path)
    bench.pool = tmp_path / "blueprint.json"
    connections = [
        {"IP": machine.address, "Username": "root", "Password": PASSWORD,
         "GPUS": int(machine.name in ("m4", "m5")),
         "energy efficient": "yes" if machine.name in ("m1", "m2") else "no"}
        for machine in machines.machines
    ]  # fmt: skip
    bench.pool.touch(0o600)
    bench.pool.write_text(json.dumps({"connections": connections}))
    assert bench.do("pool", "trust", str(bench.pool), "--yes").code == 0
    yield bench
    bench.close()


@pytest.mark.parametrize("selection", ["gpus", pytest.param("energy", marks=pytest.mark.machines)])
def test_the_password_opens_the_machines_and_appears_nowhere(bench: Bench, selection: str) -> None:
    running = bench.train(machines=selection, epochs=2000)
    running.until(r"epoch\s+2/", 180)
    taking_part = {"gpus": ["m4", "m5"], "energy": ["m1", "m2"]}[selection]
    assert [m.name for m in bench.lab.machines if processes(bench.lab, m.name)] == taking_part
    shown = "\n".join(seen_by_all_processes(bench, running))
    kept = [found for name in taking_part for found in run_folders(bench.lab, name)]
    running.signal(signal.SIGINT)
    assert running.end(90).code == 130
    run = bench.latest()
    assert bench.do("report", run.name).code == 0
    home = [path for path in bench.runs.rglob("*") if path.is_file()]
    names = {path.name for path in home}
    assert {"launch.json", "plan.json", "summary.json", "report.html", "rank-0.log"} <= names
    assert "rank-0.jsonl" in names
    assert "phalanx-agent" in shown
    assert "PHALANX_RANK=0" in shown, "the workers' variables were not read"
    assert len(kept) > 10
    assert [path for path, holds in kept if holds] == []
    assert holders(home) == []
    assert PASSWORD not in running.text + shown


def holders(files: Iterable[Path]) -> list[str]:
    return [str(path) for path in files if PASSWORD.encode() in path.read_bytes()]


def seen_by_all_processes(bench: Bench, running: Running) -> Iterator[str]:
    """Words and variables of the controller, and of all processes of the machines.

    The machines' are read here, where root sees them all. This test itself, and what it started
    the machines with, do not count: they are not of the run.
    """
    inside = {machine.pid for machine in bench.lab.machines}
    spaces = {Path(f"/proc/{pid}/ns/pid").stat().st_ino for pid in inside}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            ours = int(process.name) == running.process.pid
            if ours or (process / "ns" / "pid").stat().st_ino in spaces:
                yield _text(process / "cmdline")
                yield _text(process / "environ")
        except OSError:
            continue  # it ended meanwhile


def run_folders(lab: Lab, machine: str) -> Iterator[tuple[str, bool]]:
    """What the run has written on a machine, and what its server has: does it hold the password?

    Its /tmp is this machine's, and may have large files of others.
    """
    inside = Path(f"/proc/{lab.machine(machine).pid}/root")
    for top in ("run/home/.cache/phalanx/runs", "run/home/.cache/phalanx/blobs", "run/ssh", "tmp"):
        for folder, _, names in os.walk(inside / top):  # which goes on where something vanishes
            for path in (Path(folder, name) for name in names):
                with suppress(FileNotFoundError):
                    if stat.S_ISREG(path.lstat().st_mode):
                        yield str(path), PASSWORD.encode() in path.read_bytes()


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""
