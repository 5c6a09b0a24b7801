"""The seat and the address that a worker of several machines is given."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.errors import InputError
from phalanx.core.settings import RunSettings
from phalanx.pool.machine import Machine, Pool
from phalanx.train.start.environment import detect
from phalanx.train.start.joining_hosts import ticket_of
from phalanx.train.start.launcher_env import own_seat, seat_of
from phalanx.train.start.own_address import meeting_address, own_address

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


ADDRESSES = ["127.0.0.1", "10.77.0.3", "192.0.2.3", "::1", "fd00::3"]
POOL = Pool(
    machines=(
        Machine(name="alpha", host="10.77.0.2"),
        Machine(name="beta", host="10.77.0.3"),
        Machine(name="gamma", host="gamma.lab"),
    ),
    source="pool.yaml",
)


def address(
    variables: dict[str, str] | None = None,
    pool: Pool | None = None,
    hostname: str = "beta",
    meet_at: str = "10.77.0.2",
    known: dict[str, list[str]] | None = None,
) -> str:
    names = known or {}
    return own_address(
        variables or {},
        pool,
        hostname,
        meet_at,
        addresses=ADDRESSES,
        lookup=lambda name: names.get(name, []),
    )


def test_the_variable_wins_over_the_pool() -> None:
    assert address({"PHALANX_ADDRESS": "192.0.2.3"}, POOL) == "192.0.2.3"


def test_a_network_names_the_one_address_in_it() -> None:
    assert address({"PHALANX_ADDRESS": "10.77.0.0/24"}) == "10.77.0.3"
    assert address({"PHALANX_ADDRESS": "fd00::/16"}) == "fd00::3"


@pytest.mark.parametrize(
    "told",
    ["10.77.0.4", "0.0.0.0", "::", "10.88.0.0/24", "0.0.0.0/0", "eth0", "1/2/3", "10.77.0.0/x"],
)
def test_an_address_that_is_not_this_machines_is_refused(told: str) -> None:
    with pytest.raises(InputError, match="PHALANX_ADDRESS"):
        address({"PHALANX_ADDRESS": told})


def test_the_pools_address_is_taken_by_address_and_by_name() -> None:
    assert address(pool=POOL, hostname="whatever") == "10.77.0.3"
    assert address(pool=POOL, meet_at="192.0.2.3") == "10.77.0.3"
    only_names = Pool(machines=POOL.machines[2:], source="pool.yaml")
    known = {"gamma.lab": ["127.0.1.1", "192.0.2.3"]}
    assert address(pool=only_names, hostname="gamma.lab", known=known) == "192.0.2.3"


def test_a_name_that_leads_to_loopback_or_elsewhere_is_refused() -> None:
    only_names = Pool(machines=POOL.machines[2:], source="pool.yaml")
    for known in ({"gamma.lab": ["127.0.1.1"]}, {"gamma.lab": ["10.77.0.9"]}, {}):
        with pytest.raises(InputError, match="gamma"):
            address(pool=only_names, hostname="gamma", known=known)


def test_on_loopback_all_are_on_one_machine() -> None:
    assert address(meet_at="localhost") == "127.0.0.1"
    assert address(meet_at="127.0.0.5") == "127.0.0.1"
    assert address(meet_at="::1") == "::1"


def test_process_0_is_where_the_others_were_told_to_meet_it() -> None:
    assert address(meet_at="192.0.2.3") == "192.0.2.3"


def test_nothing_is_guessed() -> None:
    with pytest.raises(InputError) as caught:
        address()
    assert "PHALANX_ADDRESS" in caught.value.remedy
    here = Pool(machines=(Machine(name="me", host="here"),), source="pool.yaml")
    with pytest.raises(InputError, match="me"):
        address(pool=here)
    other = Pool(machines=POOL.machines[:1], source="pool.yaml")
    with pytest.raises(InputError, match="delta"):
        address(pool=other, hostname="delta")


def test_a_machines_name_stands_for_its_host() -> None:
    assert meeting_address("alpha", POOL) == "10.77.0.2"
    assert meeting_address("node01", POOL) == "node01"
    assert meeting_address("alpha", None) == "alpha"


@given(told=st.text(max_size=20), meet_at=st.text(max_size=20), hostname=st.text(max_size=9))
def test_an_own_address_or_one_clear_error(told: str, meet_at: str, hostname: str) -> None:
    try:
        found = address({"PHALANX_ADDRESS": told}, POOL, hostname, meet_at)
    except InputError:
        return
    assert found in ADDRESSES or found.startswith("127.")
