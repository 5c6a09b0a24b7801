"""A slow link is told by how many bytes pass a second, compared with the other links."""

from __future__ import annotations

import pytest
from made_stragglers import links, made_run

from phalanx.observe.events.strategy_phases import split_phases
from phalanx.observe.speedup.slow_links import NETWORK, slow_link, slow_place

SLOW, FAST = 10e6, 100e6
WAYS = [(a, b) for a in ("m1", "m2", "m3") for b in ("m1", "m2", "m3") if a != b]


def test_a_machine_is_slow_when_all_its_links_are() -> None:
    rates = {way: SLOW if "m2" in way else FAST for way in WAYS}
    assert slow_place(rates) == (("m2",), SLOW, FAST)


def test_a_link_is_named_by_both_ends() -> None:
    rates = {way: SLOW if way == ("m2", "m3") else FAST for way in WAYS}
    assert slow_place(rates) == (("m2", "m3"), SLOW, FAST)
    ring = {("m1", "m2"): SLOW, ("m2", "m3"): SLOW, ("m3", "m1"): FAST}
    assert slow_place(ring) == (("m2",), SLOW, FAST)


@pytest.mark.parametrize(
    "rates",
    [
        {},
        dict.fromkeys(WAYS, SLOW),
        {("m1", "m2"): SLOW, ("m2", "m1"): SLOW},
        {way: FAST * (0.6 if "m2" in way else 1.0) for way in WAYS},
    ],
)
def test_links_that_are_alike_say_nothing(rates: dict[tuple[str, str], float]) -> None:
    assert slow_place(rates) is None


def test_what_a_slow_link_costs() -> None:
    """Each worker sends 10 MB in five seconds, in which 70 steps communicate for 20 ms each."""
    logs = made_run(noise=0.0)
    phase = split_phases(logs, "allreduce")[0]
    for log in logs:
        own = f"m{log.rank + 1}"
        takes = {b: 1.4 if "m2" in (own, b) else 0.1 for a, b in WAYS if a == own}
        log.links = links(log.rank, takes, count=10_000_000, periods=6)
    found = slow_link(logs, phase)
    assert found is not None
    assert (found.machine, found.rank, found.cause) == ("m2", 1, NETWORK)
    assert found.gain == pytest.approx(5.0 / (5.0 - 1.4 + 0.1) - 1.0, rel=0.1)
    for log in logs:
        log.links = links(log.rank, dict.fromkeys(("m1", "m2", "m3"), 0.1), count=1000, periods=6)
    assert slow_link(logs, phase) is None, "so few bytes do not show it"
