"""A worker dies anywhere in a training that goes on without it: each sample is trained once.

The parameters are counters: whatever is applied of a sample adds one to its own, so that the
store itself says how often each was trained.
"""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from devices import AWAY
from hypothesis import given
from hypothesis import strategies as st
from on_hosts import Killed
from scripted import scripted
from strategy_cases import examples
from torch import nn

import phalanx
from phalanx.core.errors import InputError
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.observe.summary.summary import summarise
from phalanx.policies.sample_assignment import Applied, Segment
from phalanx.sync.arena.memory_arena import ThreadArena
from phalanx.sync.connect.channel import Channel
from phalanx.train.engine.shared_engine import SharedEngine
from phalanx.train.samples.outstanding_leases import OutstandingLeases
from phalanx.train.samples.shared_leases import SharedLeases

WORKERS, SAMPLES, BATCH, EPOCHS = 3, 120, 12, 3
SPECS = ["async", "ssp:bound=2", "dssp", "async:overlap=yes"]

pytestmark = pytest.mark.skipif(
    AWAY or ranks.HOSTS > 1, reason="brings hosts of its own, and loses one of them"
)


# -- the ledger, in scripted time ------------------------------------------------------------


class _Store:
    """What a store knows of pushes: by rank, how far they have come, and who is fenced."""

    def __init__(self, samples: int) -> None:
        self.trained = [0] * samples
        self.applied: dict[int, int] = {}
        self.fenced: set[int] = set()

    def push(self, rank: int, total: int, indices: list[int]) -> None:
        if rank in self.fenced:
            return
        self.applied[rank] = total
        for index in indices:
            self.trained[index] += 1

    def fence(self, rank: int) -> Applied:
        self.fenced.add(rank)
        return Applied(self.applied.get(rank, 0), self.applied.get(rank, 0))


def _ledger(arena: ThreadArena) -> tuple[SharedLeases, OutstandingLeases]:
    """What all workers have made before any of them goes on."""
    claims = SharedLeases(arena)
    claims.given = OutstandingLeases(arena)
    arena.barrier()
    return claims, claims.given


@examples(150)
@given(st.data())
def test_what_a_lost_worker_had_in_hand_is_trained_by_the_others(data: st.DataObject) -> None:
    """Kill points: before a push, after it and before anybody knows, or between two passes."""
    workers, samples = data.draw(st.integers(2, 5)), data.draw(st.integers(5, 60))
    want, passes = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 3))
    gathers = data.draw(st.sampled_from([1, 1, 2, 3]))
    deaths = {
        rank: (data.draw(st.integers(0, 12)), data.draw(st.booleans()))
        for rank in data.draw(st.sets(st.integers(1, workers - 1), max_size=workers - 1))
    }
    store, lost, said = _Store(samples), set[int](), []

    def work(rank: int, arena: ThreadArena) -> None:
        arena.lost = lost  # type: ignore[misc,assignment]
        claims, handed = _ledger(arena)
        left, late = deaths.get(rank, (1 << 30, False))
        had = stepped = 0
        for ticket in range(passes):
            over = False
            while not over:
                while leases := claims.next_few(ticket, Segment(0, samples, 0), want):
                    gathered: list[int] = []
                    for number, lease in enumerate(leases, 1):
                        arena.sleep(0.1 + rank / 100)
                        gathered += range(lease.start, lease.end)
                        had, left = lease.total, left - 1
                        if left < 0 and not late:
                            return _die(rank, arena, lost)
                        if number % gathers == 0 or number == len(leases):
                            store.push(rank, had, gathered)
                            stepped, gathered = had, []
                        if left < 0:
                            return _die(rank, arena, lost)
                handed.end(had, stepped, ticket)
                said.extend(handed.wait(ticket, store.fence))
                over = handed.over(ticket)
        return None

    scripted(workers, work, data.draw(st.integers(0, 1 << 16)))
    assert store.trained == [passes] * samples
    assert all(one.lost == 0 for one in said)
    assert all(one.trained == store.applied.get(one.worker, 0) for one in said)


def _die(rank: int, arena: ThreadArena, lost: set[int]) -> None:
    arena.sleep(1.0)  # the others notice some time later
    lost.add(rank)
    arena.wake()


def test_what_the_store_has_in_part_is_counted_and_not_given_back() -> None:
    def work(rank: int, arena: ThreadArena) -> Any:
        arena.lost = {1}  # type: ignore[misc,assignment]
        claims, handed = _ledger(arena)
        if rank == 1:
            taken = [claims.next_few(0, Segment(0, 40, 0), 10) for _ in range(4)]
            assert [one[0].total for one in taken] == [10, 20, 30, 40]
        arena.barrier()
        if rank == 1:
            return None
        handed.end(0, 0, 0)
        settled = list(handed.wait(0, lambda _: Applied(whole=10, begun=20)))
        again = [claims.next_few(0, Segment(0, 40, 0), 10)[0] for _ in range(2)]
        return settled, [(lease.start, lease.end) for lease in again]

    (settled,), again = scripted(2, work)[0]
    assert (settled.trained, settled.back, settled.lost) == (10, 20, 10)
    assert sorted(again) == [(20, 30), (30, 40)]


def test_what_an_earlier_store_has_is_not_given_back() -> None:
    """Parameters were unfrozen in mid-pass: the new store knows of no push."""

    def work(rank: int, arena: ThreadArena) -> Any:
        arena.lost = {1}  # type: ignore[misc,assignment]
        claims, handed = _ledger(arena)
        if rank == 1:
            for _ in range(4):
                claims.next_few(0, Segment(0, 40, 0), 10)
            handed.meet(20)
            handed.met()
        arena.barrier()
        if rank == 1:
            return None
        handed.end(0, 0, 0)
        return list(handed.wait(0, lambda _: Applied(whole=0, begun=0)))

    (settled,) = scripted(2, work)[0]
    assert (settled.trained, settled.of_pass, settled.back, settled.lost) == (20, 20, 20, 0)


def test_who_has_no_more_batches_does_not_wait_for_one_who_waits_for_it() -> None:
    def work(rank: int, arena: ThreadArena) -> None:
        claims, handed = _ledger(arena)
        if rank == 1:
            claims.next_few(0, Segment(0, 10, 0), 10)
            handed.meet(0)
        arena.barrier()
        if rank == 0:
            handed.end(0, 0, 0)
            with pytest.raises(InputError, match="worker 1 changed which parameters"):
                list(handed.wait(0, lambda _: None))

    scripted(2, work)


# -- whole trainings over loopback -----------------------------------------------------------


class _Death:
    """Ends one thread at its ``number``-th word over any connection; the dead say no more."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, *, late: bool) -> None:
        self._left, self._late = number, late
        self._thread: threading.Thread | None = None
        self.happened = False
        sends = Channel.send

        def send(channel: Channel, *parts: Any) -> None:
            if threading.current_thread() is not self._thread:
                sends(channel, *parts)
                return
            self._left -= 1
            if self._left < 0 or (self._left == 0 and not self._late):
                self.happened = True
                raise Killed
            sends(channel, *parts)
            if self._left == 0:
                self.happened = True
                raise Killed

        monkeypatch.setattr(Channel, "send", send)

    def await_here(self) -> None:
        self._thread = threading.current_thread()  # numbers are used again, threads are not


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the dead
@examples(8)
@given(st.sampled_from(SPECS), st.integers(1, 90), st.booleans(), st.integers(1, 2), st.booleans())
def test_no_sample_is_lost_or_twice_when_a_machine_dies(
    spec: str, number: int, late: bool, victim: int, meets: bool
) -> None:
    """``meets``: all come together before and after each pass, as in an adopted script."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(ranks, "HOSTS", WORKERS)
        patch.setattr(ranks, "places", lambda: None)
        begin, end = SharedEngine.begin_pass, SharedEngine.end_pass
        patch.setattr(SharedEngine, "begin_pass", lambda engine, **_: begin(engine, adopted=meets))
        patch.setattr(SharedEngine, "end_pass", lambda engine, **_: end(engine, adopted=meets))
        death = _Death(patch, number, late=late)
        models = [nn.Embedding(SAMPLES, 1) for _ in range(WORKERS)]

        def work(rank: int) -> bool:
            model = models[rank]
            with torch.no_grad():
                model.weight.zero_()
            run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=1.0))
            if rank == victim:
                death.await_here()
            for _ in run.epochs(EPOCHS):
                for (numbers,) in run.batches((torch.arange(SAMPLES),), batch=BATCH):
                    run.backward(-BATCH * model(numbers).mean())
                    run.step()
            return True

        chosen = RunSettings(strategy=spec, seed=1, balance="off")
        ended = ranks.as_ranks(WORKERS, Path(folder), work, chosen)
        survivors = [rank for rank in range(WORKERS) if ended[rank]]
        assert survivors == [r for r in range(WORKERS) if r != victim or not death.happened]
        for rank in survivors:
            counts = models[rank].weight.detach().flatten().round(decimals=3)
            assert counts.unique().tolist() == [EPOCHS], (rank, counts)
        if death.happened:
            summary = summarise(RunPaths(Path(folder)))
            assert summary.samples == EPOCHS * SAMPLES
            assert summary.samples_lost == 0
