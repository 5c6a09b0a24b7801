"""From names to a blueprint: SSH's configuration, and the file that is written."""

from __future__ import annotations

import shutil
from datetime import date
from pathlib import Path

import pytest
from found_machines import facts

from phalanx.core.errors import InputError, MachineError
from phalanx.launch.pool.pool_check import Visit
from phalanx.launch.pool.pool_init import blueprint_text, machines_named, name_for, with_host_names
from phalanx.launch.ssh.ssh_config import resolve
from phalanx.pool.blueprint import read_blueprint
from phalanx.pool.machine import Credential, Machine
from phalanx.pool.machine_facts import Gpu

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
