"""``phalanx pool init|trust|check|probe`` on real machines with SSH servers of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_machines import MakeLab, lab, run_in

from phalanx.lab.lab import Lab
from phalanx.launch.link.agent_link import open_agent
from phalanx.observe.events.event_types import MachineSample
from phalanx.observe.machines.monitor import sample_of
from phalanx.pool.blueprint import read_blueprint

pytestmark = pytest.mark.slow
__all__ = ["lab"]
BURN = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
WATCHED = 10
PASSWORD = f"pass-{secrets.token_hex(8)}"


@pytest.fixture(scope="module")
def machines(lab: MakeLab) -> Iterator[Lab]:
    yield lab(3, memory="2GiB", cpu="60,60,60", password=PASSWORD)


@pytest.fixture
def blueprint(machines: Lab, tmp_path: Path) -> Path:
    """Without the host keys, and not emulated: as a user would have written it."""
    path = tmp_path / "pool.yaml"
    machines.write_blueprint(path)
    text = re.sub(r', "host_key": "[^"]*"', "", path.read_text())
    path.write_text(text.replace('"emulated": true', '"emulated": false'))
    return path


def phalanx(*words: str | Path) -> tuple[int, dict[str, Any], str]:
    command = [sys.executable, "-m", "phalanx", *map(str, words), "--json"]
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, check=False
    )
    last = (ended.stdout.splitlines() or ["{}"])[-1]
    return ended.returncode, json.loads(last), ended.stderr


def test_unknown_keys_are_refused_until_they_are_trusted(blueprint: Path) -> None:
    code, _, errors = phalanx("pool", "check", blueprint)
    assert (code, errors.count("the host key of m")) == (3, 3)
    assert phalanx("pool", "trust", blueprint)[0] == 2
    assert phalanx("pool", "trust", blueprint, "--yes")[0] == 0
    code, found, errors = phalanx("pool", "check", blueprint)
    assert (code, found["findings"]) == (0, []), errors
    assert [m["facts"]["cores"] for m in found["machines"]] == [1, 1, 1]
    assert all(m["facts"]["memory"] == 2 << 30 and m["torch"] for m in found["machines"])
    assert len([knock for knock in found["reach"] if knock["ok"]]) == 6


def test_init_writes_what_is_there(machines: Lab, tmp_path: Path) -> None:
    out = tmp_path / "made.yaml"
    addresses = [machine.address for machine in machines.machines]
    words = ["pool", "init", *addresses, "10.77.255.250", "--user", "root", "--yes"]
    code, _, errors = phalanx(*words, "--key", machines.key, "--out", out)
    assert code == 3, "one of them does not exist"
    assert "10.77.255.250" in errors
    pool = read_blueprint(out)
    assert [(m.name, m.host, m.cores) for m in pool.machines] == [
        (f"m{number}", address, 1) for number, address in enumerate(addresses, start=1)
    ]
    assert phalanx("pool", "check", out)[0] in (0, 3)


def test_init_by_a_password(machines: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the password lets anybody in: the user has no key and no agent."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("LAB_PASSWORD", PASSWORD)
    out = tmp_path / "made.yaml"
    addresses = [machine.address for machine in machines.machines[:2]]
    words = ["pool", "init", *addresses, "--user", "root", "--yes", "--out", out]
    code, _, refused = phalanx(*words)
    assert (code, refused.count("--password prompt (or env:NAME)")) == (3, 2)
    code, made, errors = phalanx(*words, "--password", "env:LAB_PASSWORD")
    assert code == 0, errors
    assert [str(m.password) for m in read_blueprint(out).machines] == ["env:LAB_PASSWORD"] * 2
    _, found, said = phalanx("pool", "check", out)
    assert [m["reachable"] for m in found["machines"]] == [True, True]
    written = [path.read_text() for path in tmp_path.iterdir() if path.is_file()]
    assert len(written) == 2, "the blueprint and its keys"
    assert PASSWORD not in "".join([*written, refused, errors, said, str(made), str(found)])


def test_a_way_that_is_closed_and_one_machine_with_two_names(
    machines: Lab, blueprint: Path
) -> None:
    phalanx("pool", "trust", blueprint, "--yes")
    third = machines.machine("m3").address
    run_in(machines, "m1", ["ip", "route", "add", "unreachable", third])
    try:
        code, found, errors = phalanx("pool", "check", blueprint)
    finally:
        run_in(machines, "m1", ["ip", "route", "del", "unreachable", third])
    assert code == 3
    assert f"m1 cannot reach m3 at {third}: no route to host" in errors
    assert f"sudo ufw allow from {machines.machine('m1').address} to any" in errors
    assert sum(not knock["ok"] for knock in found["reach"]) == 2
    first, keys = machines.machine("m1").address, blueprint.with_suffix(".known_hosts")
    a, b, c, d = first.split(".")
    twin = f"{a}.{b}.{int(c) * 256 + int(d)}"  # an old way to write the same address
    keys.write_text(keys.read_text() + keys.read_text().splitlines()[0].replace(first, twin) + "\n")
    blueprint.write_text(blueprint.read_text() + f'  twin: {{"host": "{twin}"}}\n')
    code, _, errors = phalanx("pool", "check", blueprint, "--machines", "m1,twin")
    assert code == 3
    assert "are the same machine" in errors


def test_a_jump_host(machines: Lab, blueprint: Path) -> None:
    text = blueprint.read_text().replace("m2: {", 'm2: {"jump": "m1", ')
    blueprint.write_text(text)
    assert phalanx("pool", "trust", blueprint, "--yes")[0] == 0
    code, found, errors = phalanx("pool", "check", blueprint, "--machines", "m2,m3")
    assert code == 0, errors
    assert found["machines"][0]["address"] == machines.machine("m2").address


def test_a_probe_knows_the_machines(machines: Lab, blueprint: Path) -> None:
    phalanx("pool", "trust", blueprint, "--yes")
    code, found, errors = phalanx(
        "pool", "probe", blueprint, "--machines", "m1,m2", "--seconds", "3"
    )
    assert code == 0, errors
    for rates in found["rates"]:
        assert (rates["cores"], rates["gpus"]) == (1, [])
        assert rates["devices"][0]["float32"] > 0
    assert blueprint.with_suffix(".probe.json").exists()


def test_samples_agree_with_the_kernel_and_cost_little(machines: Lab, blueprint: Path) -> None:
    """A busy worker, watched for some seconds; the kernel is read whenever a sample comes."""
    phalanx("pool", "trust", blueprint, "--yes")
    machine = read_blueprint(blueprint).machines[0]
    told: list[tuple[MachineSample, float, float]] = []

    async def work() -> int:
        async with await open_agent(machine, run="sampled", timeout=30) as link:
            worker = {
                "rank": 0, "argv": [sys.executable, "-c", BURN], "env": {}, "cwd": "/tmp",
                "log": "logs/rank-0.log",
            }  # fmt: skip
            pids = (await link.ask("start", workers=[worker]))["pids"]
            inside = machines.machine("m1").pid
            busy = _on_this_host(inside, int(next(iter(pids.values()))))
            agent = _on_this_host(inside, link.hello["pid"])

            def hear(name: str, fields: dict[str, Any], _: bytes) -> bool:
                if name == "sample":
                    told.append((sample_of(fields), _seconds(busy), _seconds(agent)))
                return True

            with link.diverted(hear):
                await link.ask("sample", on=True)
                await asyncio.sleep(WATCHED)
            return machines.usage("m1")[1] or 0

    kernel_memory = asyncio.run(work())
    (first, busy_before, own_before), *_ = told
    last, busy_after, own_after = told[-1]
    passed = last.time - first.time
    by_kernel = 100 * (busy_after - busy_before) / passed
    samples = [sample for sample, _, _ in told[1:]]
    by_agent = sum(sample.workers_cpu_percent for sample in samples) / len(samples)
    assert by_agent == pytest.approx(by_kernel, rel=0.05)
    # This machine may use 60 % of a core; all that it does besides the worker is little.
    of_machine = sum(sample.cpu_percent for sample in samples) / len(samples)
    assert by_kernel / 0.6 * 0.95 <= of_machine <= by_kernel / 0.6 * 1.15
    assert last.memory_bytes == pytest.approx(kernel_memory, rel=0.2)
    assert 100 * (own_after - own_before) / passed <= 1.0


def _on_this_host(first: int, pid: int) -> int:
    """The number here of a process of a machine, whose first process is ``first`` here."""
    space = Path(f"/proc/{first}/ns/pid").stat().st_ino
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "ns" / "pid").stat().st_ino == space:
                status = (process / "status").read_text()
                numbers = next(x for x in status.splitlines() if x.startswith("NSpid:")).split()
                if int(numbers[-1]) == pid:
                    return int(process.name)
    raise AssertionError(f"no process {pid} in that machine")


def _seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / 100
