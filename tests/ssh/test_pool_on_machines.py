"""``phalanx pool init|trust|check|probe`` on real machines with SSH servers of their own."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lab_machines import run_in

from phalanx.lab.lab import Lab
from phalanx.pool.blueprint import read_blueprint

PASSWORD = f"pass-{secrets.token_hex(8)}"
LAB = {"count": 3, "memory": "2GiB", "cpu": "60,60,60", "password": PASSWORD}


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
