"""A probe of lab machines with unlike links, and who is let into them over SSH."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import last_json, phalanx
from lab_machines import MakeLab, missing
from lab_machines import lab as lab

from phalanx.lab import network
from phalanx.lab.lab import Lab
from phalanx.pool.measured import read_probe

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(missing() is not None, reason=missing() or ""),
]
RATES = {"m1": 1e9, "m2": 1e8, "this": float("inf")}
LEAST = 0.5
"""Of the rate: a busy host cannot always fill a link; on an idle one it is 0.95."""


@dataclass
class Place:
    lab: Lab
    blueprint: Path


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
