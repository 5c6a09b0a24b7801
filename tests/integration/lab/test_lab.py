"""A lab for real: machines that are entered by ssh, slowed, cut off, killed, and then gone."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import last_json, phalanx, python, until
from lab_machines import MakeLab, missing, run_in, ssh, traces, unique_name
from lab_machines import lab as lab

from phalanx.core.errors import InputError, MachineError
from phalanx.lab.lab import Lab, take_down
from phalanx.pool.blueprint import read_blueprint

pytestmark = pytest.mark.skipif(missing() is not None, reason=missing() or "")

SERVER = """
import socket, sys
server = socket.create_server((sys.argv[1], 5000))
print("listening", flush=True)
while True:
    peer, _ = server.accept()
    with peer:
        while data := peer.recv(1 << 16):
            peer.sendall(data[:1])
"""
HUNGRY = "import sys; data = bytearray(400 * 1024 ** 2); data[::4096] = b'x' * len(data[::4096])"
BUSY = """
import time
wall, used = time.monotonic(), time.process_time()
while time.monotonic() - wall < 0.6: pass
print((time.process_time() - used) / (time.monotonic() - wall))
"""
DYING = """
import os, signal, sys
from phalanx.lab import building, network
from phalanx.lab.lab import Lab
module, name, number = {"bridge": (network, "make_bridge", 1), "key": (building, "make_key", 2),
    "process": (building.Starting, "pid", 2), "link": (network, "make_link", 2),
    "ready": (building.Starting, "wait_ready", 2)}[sys.argv[2]]
real, calls = getattr(module, name), []
def dying(*words):
    result = real(*words)
    calls.append(name)
    if len(calls) == number:
        os.kill(os.getpid(), int(sys.argv[3]))
    return result
setattr(module, name, dying)
Lab.up(2, name=sys.argv[1], cpu="20,10", rate="1gbit")
"""


@pytest.fixture(scope="module")
def pair(lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> Lab:
    shared = tmp_path_factory.mktemp("shared")
    (shared / "file").write_text("seen")
    made = lab(2, cpu=[60, 30], rate="100mbit", memory="256MiB", share=[shared])
    assert run_in(made, "m2", ["cat", str(shared / "file")]) == "seen"
    return made


@pytest.fixture
def gone() -> Iterator[str]:
    """A name for a lab of which nothing may be left."""
    name = unique_name()
    assert not traces(name)
    yield name
    try:
        until(lambda: not traces(name), 10)
    finally:
        take_down(name)


def test_a_machine_is_entered_by_ssh_and_is_its_own(pair: Lab) -> None:
    words = "hostname; echo $HOME; pwd; hostname -I; touch /tmp/mine /dev/shm/mine; ls /tmp"
    host, home, folder, addresses, *listed = ssh(pair, "m1", words).splitlines()
    assert (host, home, folder) == ("m1", "/run/home", "/run/home")
    assert "mine" in listed
    assert addresses.split() == [pair.machine("m1").address]
    assert ssh(pair, "m2", "ls /tmp/mine /dev/shm/mine 2>&1 | grep -c 'No such'") == "2"
    assert not Path("/tmp/mine").exists()
    assert not Path("/dev/shm/mine").exists()


def test_a_command_runs_where_ssh_leads_to(pair: Lab) -> None:
    here = ["sh", "-c", "readlink /proc/self/ns/net /proc/self/ns/pid /proc/self/ns/mnt"]
    assert run_in(pair, "m1", here) == ssh(pair, "m1", here[2])
    assert run_in(pair, "m1", ["sh", "-c", "echo $HOME; hostname"]) == "/run/home\nm1"
    groups = run_in(pair, "m1", ["cat", "/proc/self/cgroup"])
    assert groups.count(f"phalanx-lab-{pair.name}/m1") == len(pair.machine("m1").cgroups)
    assert run_in(pair, "m1", ["pwd"]) == str(Path.cwd())
    processes = run_in(pair, "m1", ["sh", "-c", "ls -d /proc/[0-9]*"]).split()
    assert "/proc/1" in processes
    assert len(processes) < 10


def test_ending_the_command_ends_what_runs_inside(pair: Lab) -> None:
    process = subprocess.Popen(pair.command("m1", ["sleep", "987"]))
    try:
        until(lambda: "sleep" in _names_in(pair, "m1"), 10)
    finally:
        process.kill()
        process.wait(10)
    until(lambda: "sleep" not in _names_in(pair, "m1"), 10)


def _names_in(pair: Lab, machine: str) -> str:
    return run_in(pair, machine, ["sh", "-c", "cat /proc/[0-9]*/comm 2>/dev/null; true"])


def test_the_blueprint_is_a_pool(pair: Lab, tmp_path: Path) -> None:
    path = tmp_path / "lab.yaml"
    pair.write_blueprint(path)
    assert path.stat().st_mode & 0o777 == 0o600
    pool = read_blueprint(path)
    assert [m.name for m in pool.machines] == ["m1", "m2"]
    assert [m.speed for m in pool.machines] == [0.6, 0.3]
    assert [m.cores for m in pool.machines] == [1, 1]
    for machine in pool.machines:
        assert machine.emulated
        assert (machine.user, machine.key) == ("root", str(pair.key))
        assert (machine.python, machine.memory) == (sys.executable, 256 * 1024**2)
        scanned = subprocess.run(
            ["ssh-keyscan", "-t", "ed25519", machine.host], capture_output=True, timeout=20
        ).stdout
        shown = subprocess.run(
            ["ssh-keygen", "-lf", "-"], input=scanned, capture_output=True, check=True
        ).stdout.decode()
        assert machine.host_key == shown.split()[1]


class _serving:  # noqa: N801  (used as a statement)
    """An echo server in a machine."""

    def __init__(self, lab: Lab, machine: str) -> None:
        self.words = lab.command(
            machine, [sys.executable, "-c", SERVER, lab.machine(machine).address]
        )

    def __enter__(self) -> subprocess.Popen[str]:
        self.process = subprocess.Popen(self.words, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "listening\n"
        return self.process

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=60)


def test_a_link_may_have_a_rate_of_its_own(lab: MakeLab) -> None:
    unequal = lab(3, rate="m3=10mbit,m2=200mbit")
    assert [machine.rate for machine in unequal.machines] == [None, 2e8, 1e7]
    shown = [run_in(unequal, m, ["tc", "qdisc", "show", "dev", "eth0"]) for m in ("m1", "m2", "m3")]
    assert "rate" not in shown[0]
    assert "rate 200Mbit" in shown[1]
    assert "rate 10Mbit" in shown[2]


def test_a_cut_link_carries_nothing_until_it_is_healed(pair: Lab) -> None:
    with _serving(pair, "m2"), socket.create_connection((pair.machine("m2").address, 5000)) as peer:
        peer.settimeout(0.5)
        peer.sendall(b"a")
        assert peer.recv(1) == b"a"
        pair.cut("m2")
        assert pair.machine("m2").status == "cut"
        peer.sendall(b"b")
        with pytest.raises(TimeoutError):
            peer.recv(1)
        pair.heal("m2")
        peer.settimeout(20)
        assert peer.recv(1) == b"b"
    assert pair.machine("m2").status == "up"
    qdisc = run_in(pair, "m2", ["tc", "qdisc", "show", "dev", "eth0"])
    assert "tbf" in qdisc
    assert "100Mbit" in qdisc


def test_slowed_machines_get_less_processor_time_and_the_record_is_shared(pair: Lab) -> None:
    other = Lab.load(pair.name)
    other.slow("m1", 10)
    again = Lab.load(pair.name)
    assert (again.machine("m1").cpu, again.machine("m1").status) == (10, "slow")
    assert float(run_in(pair, "m1", [sys.executable, "-c", BUSY])) < 0.2
    with pytest.raises(InputError, match="cores"):
        again.slow("m1", 100 * (os.cpu_count() or 1))
    again.heal("m1")
    assert Lab.load(pair.name).machine("m1").cpu == 60


def test_memory_beyond_the_limit_ends_the_process(pair: Lab) -> None:
    words = pair.command("m1", [sys.executable, "-c", HUNGRY])
    assert subprocess.run(words, capture_output=True, timeout=30).returncode in (-9, 137)
    assert pair.machine("m1").status == "up"


def test_a_killed_machine_says_nothing_to_its_peers(lab: MakeLab) -> None:
    made = lab(1)
    with (
        _serving(made, "m1") as server,
        socket.create_connection((made.machine("m1").address, 5000)) as peer,
    ):
        peer.sendall(b"a")
        assert peer.recv(1) == b"a"
        made.kill("m1")
        server.wait(10)
        peer.settimeout(0.7)
        with pytest.raises(TimeoutError):
            peer.recv(1)
    assert made.machine("m1").status == "killed"
    with pytest.raises(MachineError, match="was killed"):
        made.heal("m1")


@pytest.mark.parametrize("moment", ["bridge", "key", "process", "link", "ready"])
def test_what_a_killed_start_left_is_taken_down(gone: str, moment: str) -> None:
    ended = _dying(gone, moment, signal.SIGKILL)
    assert ended.returncode == -signal.SIGKILL
    with pytest.raises(InputError, match="did not start completely"):
        Lab.load(gone)
    with pytest.raises(InputError, match="already"):
        Lab.up(1, name=gone)
    assert traces(gone)
    assert take_down(gone)
    assert not take_down(gone)


def test_an_interrupted_start_cleans_up_by_itself(gone: str) -> None:
    ended = _dying(gone, "link", signal.SIGINT)
    assert "KeyboardInterrupt" in ended.stderr
    assert not Path("/run/phalanx-lab", gone).exists()


def _dying(name: str, moment: str, number: int) -> subprocess.CompletedProcess[str]:
    return python("-c", DYING, name, moment, str(int(number)))


def test_the_command_line_from_up_to_down(gone: str, tmp_path: Path) -> None:
    def said(*words: str) -> subprocess.CompletedProcess[str]:
        return phalanx("lab", *words, cwd=tmp_path, COLUMNS="80")

    up = said("up", "--count", "2", "--cpu", "30,20", "--name", gone, "--json")
    assert up.returncode == 0, up.stderr
    assert [m["status"] for m in last_json(up.stdout)["machines"]] == ["up", "up"]
    assert len(read_blueprint(tmp_path / "lab.yaml").machines) == 2
    Lab.load(gone).cut("m2")
    wrong = said("slow", "m22", "25", "--lab", gone)
    assert wrong.returncode == 2
    assert "has no machine 'm22'" in wrong.stderr
    assert "Did you mean 'm2'" in wrong.stderr
    status = said("status", gone)
    assert [line.split()[2] for line in status.stdout.splitlines()[2:]] == ["up", "cut"]
    assert max(map(len, status.stdout.splitlines())) <= 80
    unknown = said("status", gone + "x")
    assert (unknown.returncode, f"Did you mean '{gone}'?" in unknown.stderr) == (2, True)
    assert said("down", gone).stdout == f"lab '{gone}' is down\n"
    assert said("down", gone).returncode == 0
    assert not (tmp_path / "lab.yaml").exists()


def test_a_blueprint_of_somebody_else_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "lab.yaml").write_text("machines: {}\n")
    answer = phalanx("lab", "up", "--name", unique_name(), cwd=tmp_path)
    assert answer.returncode == 2
    assert "already exists" in answer.stderr
    assert (tmp_path / "lab.yaml").read_text() == "machines: {}\n"
