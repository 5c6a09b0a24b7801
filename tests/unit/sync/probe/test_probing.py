"""What is measured on links: in virtual time, where figures are exact."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TypeVar

import pytest
from memory_links import memory_links

from phalanx.launch.pool.probe_plan import NAMES
from phalanx.sync.collective.links import Links, Parcel
from phalanx.sync.probe import probing

T = TypeVar("T")


class Clock:
    """Stands still unless something is sent."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def slowed(links: Links, clock: Clock, latency: float, bandwidth: float) -> Links:
    """Whatever is sent takes its time, before it arrives. For protocols where one sends at once."""
    swap = links.swap

    def slow(outgoing: Sequence[Parcel], incoming: Sequence[Parcel]) -> None:
        if outgoing:
            count = sum(len(buffer) for _, buffers in outgoing for buffer in buffers)
            clock.now += latency + count / bandwidth
        swap(outgoing, incoming)

    links.swap = slow  # type: ignore[method-assign]
    return links


def together(everyone: Sequence[Links], work: Callable[[Links], T]) -> list[T]:
    with ThreadPoolExecutor(len(everyone)) as threads:
        futures = [threads.submit(work, links) for links in everyone]
        return [future.result(timeout=180) for future in futures]


@pytest.mark.parametrize("latency", [2e-5, 0.05])
@pytest.mark.parametrize("rates", [(1e4, 1e4), (1.2e8, 1e6), (3e9, 3e9)])
def test_a_link_is_measured_as_it_is(
    monkeypatch: pytest.MonkeyPatch, latency: float, rates: tuple[float, float]
) -> None:
    clock = Clock()
    monkeypatch.setattr(
        probing, "time", SimpleNamespace(monotonic=clock, perf_counter=clock, process_time=clock)
    )
    pair = [
        slowed(links, clock, latency, rate)
        for links, rate in zip(memory_links(2), rates, strict=True)
    ]
    halves = together(pair, lambda links: probing.latency(links, 0.3))
    trip = 2 * latency + sum(probing.SMALL_MESSAGE / rate for rate in rates)
    assert halves == [pytest.approx(trip / 2)] * 2
    assert clock.now <= 0.3 + (probing.FEWEST + 2) * trip
    for sender, rate in enumerate(rates):
        before = clock.now
        found = together(pair, lambda links, s=sender: probing.stream(links, s, 0.35, latency).rate)
        assert found[sender] == pytest.approx(rate, rel=0.01)
        assert found[1 - sender] is None
        one_message = probing.FIRST_STREAM * 4 / rate + 2 * latency
        assert clock.now - before <= 0.35 + one_message + latency


def test_a_burst_at_first_is_not_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shaped link lets the first bytes pass at once: growing messages do not count."""
    clock = Clock()
    monkeypatch.setattr(
        probing, "time", SimpleNamespace(monotonic=clock, perf_counter=clock, process_time=clock)
    )
    first, second = memory_links(2)
    swap = first.swap

    def shaped(outgoing: Sequence[Parcel], incoming: Sequence[Parcel]) -> None:
        for _, buffers in outgoing:
            count = sum(map(len, buffers))
            clock.now += count / (1e9 if count < 20_000 else 1e6)
        swap(outgoing, incoming)

    first.swap = shaped  # type: ignore[method-assign]
    found = together([first, second], lambda links: probing.stream(links, 0, 0.35, 0.0).rate)
    assert found[0] == pytest.approx(1e6, rel=0.01)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("count", [4, 64, 100_000])
def test_every_collective_is_timed_by_everybody(size: int, count: int) -> None:
    assert set(probing.COLLECTIVES) == set(NAMES)

    def work(links: Links) -> list[list[float]]:
        return [probing.time_collective(links, name, count, 3) for name in NAMES]

    for seconds in together(memory_links(size), work):
        assert [len(each) for each in seconds] == [3] * len(NAMES)
        assert all(one >= 0 for each in seconds for one in each)


def test_a_slow_message_among_others_does_not_count() -> None:
    assert probing.upper_quartile([5.0]) == 5.0
    assert probing.upper_quartile([95.0, 60.0]) == 95.0
    assert probing.upper_quartile([95.0, 60.0, 94.0, 99.0, 93.0]) == 95.0
