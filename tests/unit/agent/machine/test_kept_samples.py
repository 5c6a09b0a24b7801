"""Samples of a detached run: none is lost, none told twice, whoever comes and goes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agent_process import SECONDS
from agent_process import new_agent as new_agent

from phalanx.agent import run_requests
from phalanx.agent.machine import sampling
from phalanx.agent.machine.sampling import FILE, KeptSamples


def times(samples: Any) -> list[float]:
    return [sample["time"] for sample in samples]


@pytest.fixture
def kept(tmp_path: Path) -> KeptSamples:
    kept = KeptSamples(tmp_path)
    kept.begin()
    return kept


def test_what_was_added_after_a_moment_comes_in_order(kept: KeptSamples) -> None:
    for number in range(5):
        kept.add({"time": float(number)})
    assert times(kept.later(1.0)) == [2.0, 3.0, 4.0]
    assert times(kept.later(-1.0)) == [0.0, 1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize(
    "spoiled", [b"{", b"[]", b'{"time": "now"}', b"\xff", b"[" * 3000, b"x" * 10000]
)
def test_what_is_no_sample_is_passed_over(
    kept: KeptSamples, tmp_path: Path, spoiled: bytes
) -> None:
    kept.add({"time": 1.0})
    with (tmp_path / FILE).open("ab") as file:
        file.write(spoiled + b"\n")
    kept.add({"time": 2.0})
    assert times(kept.later(0.0)) == [1.0, 2.0]


def test_the_file_has_an_end(
    kept: KeptSamples, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "MOST", 2000)
    for number in range(1000):
        kept.add({"time": float(number)})
        assert (tmp_path / FILE).stat().st_size < 2100
    left = times(kept.later(-1.0))
    assert left == [float(number) for number in range(1000 - len(left), 1000)]
    assert len(left) > 40


def test_a_run_that_was_cleaned_up_stays_so(kept: KeptSamples, tmp_path: Path) -> None:
    (tmp_path / FILE).unlink()
    kept.add({"time": 1.0})
    assert list(tmp_path.iterdir()) == [] and list(kept.later(0.0)) == []


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text('{"time": 1.0}\n')
    (tmp_path / FILE).symlink_to(other)
    kept = KeptSamples(tmp_path)
    kept.begin()
    kept.add({"time": 2.0})
    assert other.read_text() == '{"time": 1.0}\n' and list(kept.later(0.0)) == []


def test_the_longer_nobody_hears_the_fewer_there_are() -> None:
    assert {sampling.pause(alone) for alone in (0.0, 60.0, 3600.0)} == {1.0}
    alone, count = 0.0, 0
    while alone < 7 * 24 * 3600:
        alone, count = alone + sampling.pause(alone), count + 1
        assert sampling.pause(alone) <= max(1.0, alone / 1000), "a gap that can be seen"
    assert count * 500 < sampling.MOST


class Hearer:
    """A connection that somebody listens to."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self._more = threading.Condition()

    def send(self, header: dict[str, Any]) -> None:
        assert header["tell"] == "sample"
        with self._more:
            self.times.append(header["time"])
            self._more.notify_all()

    def has(self, count: int) -> None:
        with self._more:
            assert self._more.wait_for(lambda: len(self.times) >= count, timeout=SECONDS)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """An agent with a worker, and a sampler that is in a hurry."""
    monkeypatch.setattr(sampling, "PERIOD", 0.02)
    monkeypatch.setattr(sampling, "FIRST", 0.01)
    workers = SimpleNamespace(pids={0: os.getpid()}, codes={})
    agent = SimpleNamespace(connection=None, run_folder=tmp_path, workers=workers, sampler=None)
    yield agent
    run_requests.sample(agent, {"on": False}, b"")


def visit(agent: SimpleNamespace, after: float | None) -> Hearer:
    """As a controller that has everything up to a moment."""
    agent.connection = Hearer()
    run_requests.sample(agent, {"on": True, "keep": True, "after": after}, b"")
    assert isinstance(agent.connection, Hearer)
    return agent.connection


def written(agent: SimpleNamespace, more: int) -> None:
    """Until so many more samples were kept."""
    file = agent.run_folder / FILE
    wanted = len(file.read_bytes().splitlines()) + more
    deadline = time.monotonic() + SECONDS
    while len(file.read_bytes().splitlines()) < wanted:
        assert time.monotonic() < deadline, "no samples"
        time.sleep(0.01)


def test_controllers_come_and_go(machine: SimpleNamespace) -> None:
    home: list[float] = []
    for _ in range(4):
        hearer = visit(machine, home[-1] if home else None)
        hearer.has(6)
        machine.connection = None
        home += hearer.times[:-2]  # the last are lost on the way
        written(machine, 5)
    end = visit(machine, home[-1])
    end.has(8)
    run_requests.sample(machine, {"on": False}, b"")
    assert home + end.times == times(KeptSamples(machine.run_folder).later(0.0))
    assert len(set(home)) == len(home) and home == sorted(home)


def test_who_has_not_asked_for_the_old_ones_is_not_told_new_ones(machine: SimpleNamespace) -> None:
    first = visit(machine, None)
    first.has(1)
    machine.connection = second = Hearer()
    written(machine, 1)
    alone = (len(first.times), machine.sampler._heard)
    written(machine, 5)
    assert second.times == []
    assert (len(first.times), machine.sampler._heard) == alone, "and nobody counts as there"


def test_the_time_after_the_workers_is_not_the_run_s(machine: SimpleNamespace) -> None:
    hearer = visit(machine, None)
    hearer.has(2)
    machine.connection = None
    machine.workers.codes[0] = machine.workers.pids.pop(0)
    machine.sampler._thread.join(SECONDS)
    assert not machine.sampler._thread.is_alive()
    everything = times(KeptSamples(machine.run_folder).later(0.0))
    assert visit(machine, 0.0).times == everything and len(everything) >= 2


def test_what_an_agent_left_behind_is_told_by_another(tmp_path: Path, kept: KeptSamples) -> None:
    for number in range(3):
        kept.add({"time": float(number), "tell": "other"})
    hearer = Hearer()
    agent = SimpleNamespace(connection=hearer, run_folder=tmp_path)
    run_requests.kept_samples(agent, {"after": 0}, b"")
    assert hearer.times == [1.0, 2.0]
