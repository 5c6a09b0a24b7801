"""The way to each machine: jump hosts, by name or by address."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.core.errors import InputError
from phalanx.pool.blueprint import read_blueprint
from phalanx.pool.machine import Machine, Pool


def read(folder: Path, text: str) -> Pool:
    path = folder / "pool.yaml"
    path.write_text(text)
    return read_blueprint(path)


def by_name(pool: Pool) -> dict[str, Machine]:
    return {machine.name: machine for machine in pool.machines}


def test_a_chain_through_the_pool(tmp_path: Path) -> None:
    pool = by_name(
        read(
            tmp_path,
            "machines: {a: {host: a.example}, b: {host: b.example, jump: a}, "
            "c: {host: c.example, jump: b}}",
        )
    )
    assert pool["a"].via is None
    assert pool["c"].via is not None and pool["c"].via.name == "b"
    assert pool["c"].via.via is not None and pool["c"].via.via.name == "a"


def test_a_host_outside_the_pool(tmp_path: Path) -> None:
    machine = by_name(
        read(
            tmp_path,
            "machines: {a: {host: a.example, user: ml, password: env:P, jump: 'me@gate:2222'}}",
        )
    )["a"]
    assert (machine.via.user, machine.via.host, machine.via.port) == ("me", "gate", 2222)
    assert machine.via.password is None, "a password is for the machine it was given for"
    assert machine.via.known_keys == str(tmp_path / "pool.known_hosts")


def test_ways_are_not_written_down(tmp_path: Path) -> None:
    machine = by_name(read(tmp_path, "machines: {a: {host: a.example, jump: gate}}"))["a"]
    assert not {"via", "known_keys"} & machine.model_dump().keys()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{a: {host: a.x, jump: b}, b: {host: b.x, jump: a}}", "form a loop"),
        ("{a: {host: a.x, jump: a}}", "form a loop"),
        (
            "{here: {host: here}, a: {host: a.x, jump: here}}",
            "'here' cannot have or be a jump host",
        ),
        ("{a: {host: a.x, jump: 'x;reboot'}}", "jump must be"),
        ("{a: {host: a.x, jump: 'gate:99999'}}", "neither a machine of the pool nor a host"),
        ("{a: {host: a.x, jump: '-oProxyCommand=x'}}", "jump must be"),
        ("{a: {host: a.x, address: 'b c'}}", "address must be"),
        ("{a: {host: a.x, folder: '-rf'}}", "folder must be"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read(tmp_path, f"machines: {text}")
    assert "pool.yaml:1:" in caught.value.cause
