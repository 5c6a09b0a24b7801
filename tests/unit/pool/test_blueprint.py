"""Blueprints that are right, or nearly: every form reads into the pool that was meant."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from phalanx.core.errors import InputError
from phalanx.pool.blueprint import read_blueprint
from phalanx.pool.document import mended_json
from phalanx.pool.machine import FILE_FIELDS, Machine, Pool

FINGERPRINT = "SHA256:" + "a" * 43
YAML_POOL = f"""\
defaults: {{user: ml, key: ~/.ssh/id_ed25519, python: python3.11, gpus: 2}}
machines:
  here:  {{host: here, gpus: 0}}
  alpha: {{host: 192.0.2.10, watts: 250, price_per_hour: 0.90, data: /data/cifar, speed: 2.5}}
  beta:
    host: 192.0.2.11
    port: 2222
    user: other
    gpus: 0
    cores: 4
    memory: 16GiB
    energy_efficient: true
    host_key: "{FINGERPRINT}"
    password: env:BETA_PASSWORD
    emulated: yes
"""


def write(folder: Path, text: str, name: str = "pool.yaml", mode: int = 0o644) -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(mode)
    return path


def by_name(pool: Pool) -> dict[str, Machine]:
    return {m.name: m for m in pool.machines}


def test_defaults_and_overrides(tmp_path: Path) -> None:
    pool = read_blueprint(write(tmp_path, YAML_POOL))
    machines = by_name(pool)
    assert list(machines) == ["here", "alpha", "beta"]
    assert pool.warnings == ()
    alpha, beta = machines["alpha"], machines["beta"]
    assert (alpha.user, alpha.gpus, alpha.python) == ("ml", 2, "python3.11")
    assert (alpha.watts, alpha.price_per_hour, alpha.speed) == (250.0, 0.9, 2.5)
    assert (alpha.data, alpha.key, alpha.cores) == ("/data/cifar", "~/.ssh/id_ed25519", None)
    assert (beta.user, beta.gpus, beta.cores, beta.port) == ("other", 0, 4, 2222)
    assert (beta.memory, beta.host_key) == (16 * 2**30, FINGERPRINT)
    assert beta.energy_efficient and beta.emulated and not alpha.energy_efficient
    assert str(beta.password) == "env:BETA_PASSWORD"


def test_this_machine_is_measured_where_nothing_is_said(tmp_path: Path) -> None:
    here = by_name(read_blueprint(write(tmp_path, "machines: {here: {host: here}}")))["here"]
    assert here.is_here
    assert here.cores is not None and here.cores >= 1
    assert set(here.cpu_ids) == os.sched_getaffinity(0)
    assert here.memory is not None and here.memory > 2**20


def test_json_in_our_form_with_tabs(tmp_path: Path) -> None:
    machines = {"a": {"host": "192.0.2.1", "gpus": 1}, "b": {"host": "b.example", "cores": "8"}}
    document = {"defaults": {"user": "ml"}, "machines": machines}
    text = json.dumps(document, indent="\t", separators=("\t,", "\t:\t"))
    pool = read_blueprint(write(tmp_path, f"\t{text}\n\t", "pool.json"))
    facts = [(m.name, m.host, m.user, m.gpus, m.cores) for m in pool.machines]
    assert facts == [("a", "192.0.2.1", "ml", 1, None), ("b", "b.example", "ml", 0, 8)]


ORIGINAL = {
    "connections": [
        {
            "IP": "192.0.2.1",
            "Username": "ntua",
            "Password": "first-secret",
            "GPUS": 1,
            "energy_efficient": "yes",
        },
        {
            "ip": "192.0.2.2",
            "USERNAME": "ntua",
            "password": "second-secret",
            "Gpus": "0",
            "energy efficient": "No",
        },
        {"Ip": "192.0.2.3", "username": "x", "gpus": 2, "Energy-Efficient": True},
        {"IP": "2001:db8::4", "Username": "x", "energy_efficient": False, "name": "four"},
    ]
}


@pytest.mark.parametrize("name", ["original.json", "original.yaml"])
def test_original_form(tmp_path: Path, name: str) -> None:
    pool = read_blueprint(write(tmp_path, json.dumps(ORIGINAL), name, mode=0o600))
    facts = [(m.name, m.host, m.user, m.gpus, m.energy_efficient) for m in pool.machines]
    assert facts == [
        ("192.0.2.1", "192.0.2.1", "ntua", 1, True),
        ("192.0.2.2", "192.0.2.2", "ntua", 0, False),
        ("192.0.2.3", "192.0.2.3", "x", 2, True),
        ("four", "2001:db8::4", "x", 0, False),
    ]
    secret = pool.machines[0].inline_password
    assert secret is not None and secret.get_secret_value() == "first-secret"


@pytest.mark.parametrize(
    ("written", "meant"),
    [("yes", True), ("No", False), ("true", True), ("FALSE", False), ('"on"', True), ("0", False)],
)
def test_spellings_of_yes_and_no(tmp_path: Path, written: str, meant: bool) -> None:
    text = f"machines: {{a: {{host: a.example, energy_efficient: {written}}}}}"
    assert read_blueprint(write(tmp_path, text)).machines[0].energy_efficient is meant


@pytest.mark.parametrize(
    ("written", "bytes_"),
    [("8GB", 8 * 10**9), ("8 GiB", 8 * 2**30), ("1.5g", 1_500_000_000), ("512mib", 2**29)],
)
def test_sizes(tmp_path: Path, written: str, bytes_: int) -> None:
    text = f"machines: {{a: {{host: a.example, memory: {written}}}}}"
    assert read_blueprint(write(tmp_path, text)).machines[0].memory == bytes_


def test_values_stay_as_written(tmp_path: Path) -> None:
    """YAML would make numbers, dates and booleans of these."""
    text = "machines: {2024-01-01: {host: 010.example, user: 0123, password: 0x1F}}"
    machine = read_blueprint(write(tmp_path, text, mode=0o600)).machines[0]
    assert (machine.name, machine.host, machine.user) == ("2024-01-01", "010.example", "0123")
    assert machine.inline_password.get_secret_value() == "0x1F"


def test_json_escapes_beyond_sixteen_bits(tmp_path: Path) -> None:
    text = json.dumps({"connections": [{"IP": "192.0.2.1", "Password": "pass\U0001f511/"}]})
    assert "\\ud83d" in text
    machine = read_blueprint(write(tmp_path, text, "p.json", mode=0o600)).machines[0]
    assert machine.inline_password.get_secret_value() == "pass\U0001f511/"


@pytest.mark.parametrize("reference", ["env:NAME", "key:~/.ssh/id", "agent", "prompt"])
def test_references_are_read_from_any_file(tmp_path: Path, reference: str) -> None:
    text = f"machines: {{a: {{host: a.example, password: '{reference}'}}}}"
    pool = read_blueprint(write(tmp_path, text))
    assert str(pool.machines[0].password) == reference
    assert pool.machines[0].inline_password is None
    assert pool.warnings == ()


REFERENCE = Path(__file__).parents[3] / "docs" / "reference" / "blueprint.md"


def test_the_reference_names_every_field() -> None:
    rows = [line for line in REFERENCE.read_text().splitlines() if line.startswith("| `")]
    documented = [row.split("`")[1] for row in rows]
    assert [f for f in FILE_FIELDS if f not in documented] == []


@pytest.mark.parametrize("language", ["yaml", "json"])
def test_the_examples_of_the_reference_are_read(tmp_path: Path, language: str) -> None:
    blocks = REFERENCE.read_text().split(f"```{language}\n")[1:]
    assert blocks
    for block in blocks:
        path = write(tmp_path, block.split("```")[0], f"pool.{language}", mode=0o600)
        assert read_blueprint(path).machines


PRINTED = """{
  "connections": [
    {"IP": "192.0.2.1" "Username": "lab"
     "GPUs": 0 "Energy efficient": yes}
    {"IP": "192.0.2.2", "Username": "lab", "Password": "secret word"
     "GPUs": 1, "Energy efficient": no}
  ]
}
"""


def test_missing_commas_and_bare_words_are_read(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text(PRINTED)
    (tmp_path / "old.json").chmod(0o600)
    pool = read_blueprint(tmp_path / "old.json")
    first, second = pool.machines
    assert (first.host, first.user, first.gpus, first.energy_efficient) == (
        "192.0.2.1", "lab", 0, True
    )  # fmt: skip
    assert (second.gpus, second.energy_efficient) == (1, False)
    assert second.inline_password is not None
    old = tmp_path / "old.json"
    assert pool.warnings[0] == f"{old}: 5 commas and 2 pairs of quotes were missing"


def test_what_is_valid_stays_as_it_is() -> None:
    text = '{"connections": [{"IP": "192.0.2.1", "note": "no, \\"yes\\" {", "n": [1, 2]}]}'
    assert mended_json(text) == (text, 0, 0)


@pytest.mark.parametrize(
    ("machine", "fault"),
    [
        ('"IP": "192.0.2.1" "Colour": "red"', "Colour"),
        ('"IP": "192.0.2.1", "Username": "lab', "broken JSON"),  # a quote without its pair
        ('"IP": "192.0.2.1", "Password": "a\tb"', "broken JSON"),
    ],
)
def test_other_faults_are_said(tmp_path: Path, machine: str, fault: str) -> None:
    old = tmp_path / "old.json"
    old.write_text(f'{{"connections": [{{{machine}}}]}}')
    with pytest.raises(InputError, match=fault):
        read_blueprint(old)
