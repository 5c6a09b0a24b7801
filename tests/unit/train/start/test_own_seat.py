"""The seat that Phalanx's own launcher gives a worker of several machines."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.core.errors import InputError
from phalanx.core.settings import RunSettings
from phalanx.train.start.environment import detect
from phalanx.train.start.joining_hosts import ticket_of
from phalanx.train.start.launcher_env import own_seat, seat_of

VARIABLES = {
    "PHALANX_RANK": "2",
    "PHALANX_WORKERS": "3",
    "PHALANX_MACHINE": "beta 2",
    "PHALANX_MEET": "127.0.0.1:9900",
    "PHALANX_ADDRESS": "127.0.0.1",
    "PHALANX_KEY": "ab" * 32,
    "PHALANX_TLS": "1",
    "PHALANX_SERVERS": "2",
    "PHALANX_LINKS": '{"alpha": 1e9, "beta 2": 1e8}',
    "PHALANX_POOL": "/there/is/no/such/pool.yaml",
}


def test_workers_of_one_machine_share_memory_instead() -> None:
    assert own_seat(VARIABLES | {"PHALANX_ARENA": "3"}) is None
    assert own_seat({k: v for k, v in VARIABLES.items() if k != "PHALANX_MEET"}) is None


def test_what_the_pool_says_comes_by_variables() -> None:
    seat = own_seat(VARIABLES)
    assert seat is not None
    ticket = ticket_of(seat, VARIABLES)
    assert ticket.tls and ticket.machine == "beta 2" and ticket.address == "127.0.0.1"
    assert ticket.server_request.servers == 2
    assert ticket.server_request.links == {"alpha": 1e9, "beta 2": 1e8}
    assert not ticket_of(seat, VARIABLES | {"PHALANX_TLS": "0"}).tls


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"PHALANX_RANK": "3"}, "PHALANX_RANK is 3"),
        ({"PHALANX_MEET": "127.0.0.1"}, "PHALANX_PORT is not set"),
        ({"PHALANX_LINKS": "[1]"}, "PHALANX_LINKS cannot be read"),
        ({"PHALANX_KEY": ""}, "this run has no key"),
        ({"PHALANX_ADDRESS": "192.0.2.77"}, "not an address of this machine"),
    ],
)
def test_mistakes_are_named(changed: dict[str, str], cause: str) -> None:
    with pytest.raises(InputError) as caught:
        seat = own_seat(VARIABLES | changed)
        assert seat is not None
        ticket_of(seat, VARIABLES | changed)
    assert cause in caught.value.cause


def test_data_of_this_machine_win_over_those_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHALANX_RANK", "0")
    monkeypatch.setenv("PHALANX_WORKERS", "1")
    monkeypatch.setenv("PHALANX_RUN", str(tmp_path))
    monkeypatch.setenv("PHALANX_SETTINGS", RunSettings(data="/of/the/run").to_json())
    assert detect().data == Path("/of/the/run")
    monkeypatch.setenv("PHALANX_DATA", "/of/this/machine")
    monkeypatch.setenv("PHALANX_GRACE", "10")
    found = detect()
    assert found.data == Path("/of/this/machine")
    assert found.stop_seconds == 9.0


def test_the_launcher_names_the_addresses_of_all_machines() -> None:
    """Listeners keep places for them."""
    seat = own_seat(VARIABLES)
    assert seat is not None
    assert ticket_of(seat, VARIABLES).members == ()
    given = {"PHALANX_MEMBERS": "127.0.0.1,::1"}
    assert ticket_of(seat, VARIABLES | given).members == ("127.0.0.1", "::1")


def test_by_hand_the_blueprint_names_them(tmp_path: Path) -> None:
    pool = tmp_path / "pool.yaml"
    pool.write_text("machines: {a: {host: 127.0.0.1}, b: {host: b.lan, address: 192.0.2.2}}")
    variables = {
        "PHALANX_PROCESS": "0", "PHALANX_PROCESSES": "2", "PHALANX_MEET": "127.0.0.1:9900",
        "PHALANX_KEY": "ab" * 32, "PHALANX_POOL": str(pool),
    }  # fmt: skip
    seat = seat_of(variables, "a")
    assert seat is not None
    assert ticket_of(seat, variables).members == ("127.0.0.1", "192.0.2.2")
    assert ticket_of(seat, variables | {"PHALANX_MEMBERS": "::1"}).members == ("::1",)
