"""What a check of machines has seen, and the blueprint that is written of it."""

from __future__ import annotations

import shutil
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from found_machines import facts

from phalanx.core.errors import InputError, MachineError
from phalanx.launch.machines.addresses import address_for_others, own_address
from phalanx.launch.pool.pool_check import Check, Knock, Visit
from phalanx.launch.pool.pool_findings import PoolFinding, findings_of
from phalanx.launch.pool.pool_init import blueprint_text, machines_named, name_for, with_host_names
from phalanx.launch.ssh.ssh_config import resolve
from phalanx.pool.blueprint import read_blueprint
from phalanx.pool.machine import Credential, Machine
from phalanx.pool.machine_facts import Address, Gpu, MachineFacts


def visit(name: str = "alpha", host: str = "10.0.0.2", **changes: Any) -> Visit:
    facts_alone = set(MachineFacts.__struct_fields__) - {"python"}
    own = {key: changes.pop(key) for key in facts_alone & changes.keys()}
    machine_fields = changes.pop("machine", {})
    made = Visit(Machine(name=name, host=host, **machine_fields))
    made.facts = facts(**{"machine_id": name, **own})
    made.python, made.torch, made.skew, made.address = "3.11.7", "2.13.0", 0.0, host
    for key, value in changes.items():
        setattr(made, key, value)
    return made


def found(*visits: Visit, knocks: tuple[Knock, ...] = ()) -> list[PoolFinding]:
    return findings_of(Check(list(visits), list(knocks)))


def test_nothing_is_wrong() -> None:
    other = visit("beta", "10.0.0.3")
    knocks = (Knock("alpha", "beta", True), Knock("beta", "alpha", True))
    assert found(visit(), other, knocks=knocks) == []


@pytest.mark.parametrize(
    ("changes", "level", "cause", "remedy"),
    [
        ({"disk_free": 10**8}, "error", "100 MB are free in /home/ml", "'folder'"),
        ({"skew": 3600.4}, "error", "1 hour ahead of", "timedatectl set-ntp true"),
        ({"skew": -7.25}, "warning", "7.2 seconds behind", "timedatectl"),
        ({"skew": -90000.0}, "error", "1 day behind", "timedatectl"),
        ({"python": "3.9.2"}, "error", "is Python 3.9.2; workers need 3.11", "'python'"),
        ({"machine": {"gpus": 1}}, "error", "says 1 GPU, the machine has no GPUs", "emulated"),
        ({"machine": {"cores": 9}}, "warning", "says 9 cores", "Correct 'cores'"),
        ({"python_error": MachineError("alpha cannot run 'x'", "do")}, "error", "cannot run", "do"),
        ({"listen_error": MachineError("cannot listen", "do")}, "error", "alpha: cannot", "do"),
    ],
)
def test_one_machine(changes: dict[str, Any], level: str, cause: str, remedy: str) -> None:
    (finding,) = found(visit(**changes))
    assert finding.level == level
    assert cause in finding.cause and "alpha" in finding.cause
    assert remedy in finding.remedy


def test_a_machine_that_only_pretends_to_have_gpus() -> None:
    assert found(visit(machine={"gpus": 2, "emulated": True})) == []
    assert found(visit(machine={"gpus": 1}, gpus=[Gpu(name="G")])) == []


def test_a_machine_that_was_not_reached_is_one_line() -> None:
    lost = Visit(Machine(name="beta", host="10.0.0.3"), error=MachineError("beta is away", "wait"))
    assert [f.cause for f in found(visit(), lost)] == ["beta is away"]


def test_two_names_of_one_machine() -> None:
    (finding,) = found(visit(), visit("beta", "alpha.example", machine_id="alpha"))
    assert finding.machines == ("alpha", "beta")
    assert "are the same machine" in finding.cause


@pytest.mark.parametrize(
    ("why", "remedy"),
    [
        ("no answer", "On beta, run: sudo ufw allow from 10.0.0.2 to any"),
        ("connection refused", "--add-source=10.0.0.2"),
        ("another machine answers at 10.0.0.3", "'address' of beta in the blueprint"),
        ("network is unreachable", "ip route get 10.0.0.3"),
    ],
)
def test_a_closed_door(why: str, remedy: str) -> None:
    knocks = (Knock("alpha", "beta", False, why), Knock("beta", "alpha", True))
    (finding,) = found(visit(), visit("beta", "10.0.0.3"), knocks=knocks)
    assert finding.cause == f"alpha cannot reach beta at 10.0.0.3: {why}"
    assert remedy in finding.remedy


def test_which_address_the_others_use() -> None:
    plain = Machine(name="a", host="a.example")
    told = Machine(name="a", host="a.example", address="10.9.9.9")
    many = facts(
        addresses=[
            Address(interface="docker0", address="172.17.0.1"),
            Address(interface="eth0", address="fd00::2"),
            Address(interface="eth0", address="10.0.0.2"),
        ],
        default_interface="eth0",
    )
    assert address_for_others(told, many, "203.0.113.5") == "10.9.9.9"
    assert address_for_others(plain, many, "172.17.0.1") == "172.17.0.1"
    assert address_for_others(plain, many, "203.0.113.5") == "10.0.0.2", "behind a translation"
    assert address_for_others(plain, facts(addresses=[]), None) == "127.0.0.1"
    assert own_address([None, "10.0.0.1", "10.0.0.1", "192.0.2.1"]) == "10.0.0.1"
    assert own_address([None]) is None


CONFIG = """\
Host alpha beta
    HostName 192.0.2.%h
    User ml
    Port 2222
    IdentityFile ~/.ssh/lab_key
Host inner
    HostName inner.example
    ProxyJump alpha
Host *.example !x
    User other
"""
needs_ssh = pytest.mark.skipif(shutil.which("ssh") is None, reason="needs ssh")


@pytest.fixture()
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    ssh = tmp_path / "home" / ".ssh"
    ssh.mkdir(parents=True)
    (ssh / "config").write_text(CONFIG)
    (ssh / "lab_key").write_text("a key")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@needs_ssh
def test_an_alias_is_what_ssh_takes_it_for(home: Path, tmp_path: Path) -> None:
    found = resolve("alpha")
    assert (found.host, found.user, found.port) == ("192.0.2.alpha", "ml", 2222)
    assert found.key is not None and found.key.endswith("lab_key")
    assert resolve("inner").jump == "ml@192.0.2.alpha:2222"
    inner, here = machines_named(["inner", "here"], tmp_path / "p.yaml", user="me")
    assert inner.via is not None and (inner.via.host, inner.via.port) == ("192.0.2.alpha", 2222)
    assert (inner.user, here.is_here, here.user) == ("me", True, None)
    assert inner.known_keys == str(tmp_path / "p.known_hosts")


@needs_ssh
@pytest.mark.parametrize("name", ["-oProxyCommand=reboot", "a b", "a;b"])
def test_names_that_are_none(home: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError):
        machines_named([name], tmp_path / "pool.yaml")


def test_names_for_blueprints() -> None:
    assert name_for("ml@10.0.0.2") == "10.0.0.2"
    assert name_for("[fd00::2]") == "fd00-2"
    assert name_for("all") == "all-1"


def test_the_file_is_read_again_as_what_was_found(tmp_path: Path) -> None:
    path = tmp_path / "pool.yaml"
    secret = Credential("env", "THE_PASSWORD")
    alpha = Visit(Machine(name="10.0.0.2", host="10.0.0.2", user="ml", port=2222, password=secret))
    alpha.facts = facts(
        gpus=[Gpu(name="Evil\nGPU: # x", memory=2**34)], cpu_model="A CPU\n  gpus: 9"
    )
    alpha.python, alpha.torch = "3.11.7", "2.13.0"
    alpha.machine = alpha.machine.model_copy(update={"python": "/opt/my env/bin/python: #"})
    asked = Credential("prompt")
    beta = Visit(Machine(name="beta", host="[fd00::2]", jump="me@gate:23", password=asked))
    beta.facts = facts(hostname="beta")
    lost = Visit(Machine(name="gamma", host="10.0.0.9"), error=MachineError("away\nmachines: {}"))
    visits = [alpha, beta, lost]
    with_host_names(visits)
    text = blueprint_text(visits, path, date(2026, 1, 2))
    path.write_text(text)
    pool = read_blueprint(path)
    assert [m.name for m in pool.machines] == ["alpha", "beta"]
    first, second = pool.machines
    assert (first.host, first.port, first.user, first.gpus) == ("10.0.0.2", 2222, "ml", 1)
    assert (first.python, first.cores, first.memory) == ("/opt/my env/bin/python: #", 4, 2**33)
    assert (second.host, second.jump, second.gpus) == ("[fd00::2]", "me@gate:23", 0)
    assert (first.password, second.password) == (secret, asked)
    assert "  # gamma: {host: " in text and "not reached: away machines" in text
    assert "no Python with torch was found" in text
