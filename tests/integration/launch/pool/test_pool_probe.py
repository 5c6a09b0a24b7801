"""A probe of lab machines with unlike links, and who is let into them over SSH."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest
from commands import last_json, phalanx, until
from lab_machines import MakeLab, missing
from lab_machines import lab as lab

from phalanx.core.errors import MachineError
from phalanx.lab import network
from phalanx.lab.lab import Lab
from phalanx.launch.ssh.ssh_command import connect, start_command
from phalanx.pool.blueprint import read_blueprint
from phalanx.pool.machine import Machine
from phalanx.pool.measured import read_probe

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]
RATES = {"m1": 1e9, "m2": 1e8, "this": float("inf")}
LEAST = 0.5
"""Of the rate: a busy host cannot always fill a link; on an idle one it is 0.95."""
T = TypeVar("T")


@dataclass
class Place:
    lab: Lab
    blueprint: Path

    def machine(self, name: str, **changes: object) -> Machine:
        pool = read_blueprint(self.blueprint)
        return next(m for m in pool.machines if m.name == name).model_copy(update=changes)


@pytest.fixture(scope="module")
def place(lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """A machine at 1 Gbit/s and one at 100 Mbit/s; this host; and one that is not there."""
    made = lab(2, rate="1gbit")
    slow = made.machine("m2")
    network.shape(slow.interface, RATES["m2"])
    network.shape("eth0", RATES["m2"], pid=str(slow.pid))
    path = tmp_path_factory.mktemp("probe") / "lab.yaml"
    made.write_blueprint(path)
    nobody = made.gateway.rpartition(".")[0] + ".200"
    with path.open("a") as file:
        file.write("  this: {host: here}\n")
        file.write(f"  gone: {{host: {nobody}, host_key: '{slow.host_key}'}}\n")
    return Place(made, path)


@pytest.fixture(scope="module")
def ended(place: Place) -> subprocess.CompletedProcess[str]:
    words = ["pool", "probe", str(place.blueprint), "--seconds", "4", "--json"]
    return phalanx(*words, cwd=place.blueprint.parent, COLUMNS="80")


def test_bandwidth_is_that_of_the_slower_end(ended: subprocess.CompletedProcess[str]) -> None:
    links = last_json(ended.stdout)["links"]
    found = {(link["source"], link["target"]): 8 * link["bandwidth"] for link in links}
    expected = {(a, b): min(RATES[a], RATES[b]) for a in RATES for b in RATES if a != b}
    assert found.keys() == expected.keys()
    for pair, rate in expected.items():
        assert LEAST * rate <= found[pair] <= 1.02 * rate, pair
    assert all(0 < link["latency"] < 0.1 for link in links)


def test_large_messages_follow_the_formula(ended: subprocess.CompletedProcess[str]) -> None:
    """A sum of 1 MiB is bytes ÷ bandwidth; the factor leaves room for busy hosts."""
    answer = last_json(ended.stdout)
    assert answer["participants"] == ["m1", "m2", "this"]
    timed = {(c["name"], c["bytes"]): c for c in answer["collectives"]}
    figures = timed["all_reduce.ring", 1 << 20]
    assert 0.2 < figures["measured"] / figures["predicted"] < 5
    assert {c["name"] for c in answer["collectives"]} >= {"all_reduce.tree", "all_reduce.ring"}
    assert answer["seconds"] < answer["budget"] + 3


def test_who_cannot_be_reached_is_named(ended: subprocess.CompletedProcess[str]) -> None:
    assert ended.returncode == 3
    assert [t["machines"] for t in last_json(ended.stdout)["trouble"]] == [["gone"]]
    errors = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "gone (" in errors[0]
    told = [line for line in ended.stderr.splitlines() if not line.startswith(("error:", "hint:"))]
    assert max(map(len, told)) <= 80


def test_it_is_kept(place: Place, ended: subprocess.CompletedProcess[str]) -> None:
    kept = read_probe(place.blueprint)
    assert kept is not None
    assert kept.emulated
    answer = last_json(ended.stdout)
    assert kept.date == answer["date"]
    assert len(kept.links) == len(answer["links"]) == 6
    path = place.blueprint.with_suffix(".probe.json")
    assert path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text())["format"] == 1


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 30))


async def hostname_of(machine: Machine) -> bytes | None:
    async with await start_command(machine, ["uname", "-n"]) as command:
        return await command.line(10)


async def enter(machine: Machine) -> None:
    connection = await connect(machine)
    connection.abort()


def test_a_host_key_is_always_checked(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    right = place.machine("m1")
    assert run(hostname_of(right)) == b"m1"
    shown = right.host_key or ""
    with pytest.raises(MachineError, match="the blueprint has SHA256:aaa") as wrong:
        run(enter(place.machine("m1", host_key="SHA256:" + "a" * 43)))
    assert shown in wrong.value.cause
    with pytest.raises(MachineError, match="is not known") as unknown:
        run(enter(place.machine("m1", host_key=None)))
    assert shown in unknown.value.cause
    assert "host_key" in unknown.value.remedy


def test_the_users_own_known_hosts_count_where_the_blueprint_says_nothing(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    machine = place.machine("m1", host_key=None)
    scanned = subprocess.run(
        ["ssh-keyscan", "-t", "ed25519", machine.host],
        capture_output=True, text=True, timeout=20, check=True,
    )  # fmt: skip
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "known_hosts").write_text(scanned.stdout)
    assert run(hostname_of(machine)) == b"m1"


def test_a_key_that_does_not_open(place: Place, tmp_path: Path) -> None:
    key = tmp_path / "other"
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)]
    subprocess.run(words, timeout=20, check=True)
    with pytest.raises(MachineError, match=r"m1 .* rejected the login of root"):
        run(enter(place.machine("m1", key=str(key))))


def test_leaving_ends_what_runs_there(place: Place) -> None:
    async def work() -> str:
        words = ["sh", "-c", "echo $$; exec sleep 600"]
        async with await start_command(place.machine("m1"), words) as command:
            return (await command.line(10) or b"").decode()

    pid = run(work())
    assert pid.isdecimal()

    def gone() -> bool:
        words = place.lab.command("m1", ["test", "-d", f"/proc/{pid}"])
        return subprocess.run(words, timeout=20, check=False).returncode != 0

    until(gone, 10)
