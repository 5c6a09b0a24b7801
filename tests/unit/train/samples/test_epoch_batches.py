"""How batches come to a training, and to members of a group."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from scripted import scripted
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from phalanx.data import lazy
from phalanx.data.reader import as_reader
from phalanx.policies.sample_assignment import Segment
from phalanx.train.engine.sample_leases import SampleLeases
from phalanx.train.samples.epoch_batches import loaded, new_pass
from phalanx.train.samples.shared_leases import SharedLeases

X = torch.arange(8.0).view(8, 1)


class Made(Dataset[Any]):
    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return X[index], index


class PinsItself(DataLoader[Any]):
    """A loader with processes has a thread that pins their batches; here is nothing to pin for."""

    asked: ClassVar[list[bool]] = []

    def __init__(self, *words: Any, pin_memory: bool, **options: Any) -> None:
        super().__init__(*words, **options)
        self.asked.append(pin_memory)


@pytest.mark.parametrize("ahead", [0, 2])
@pytest.mark.parametrize("processes", [0, 1])
@pytest.mark.parametrize("made", [True, False])
def test_a_script_that_copies_its_batches_itself_gets_them_pinned(
    monkeypatch: pytest.MonkeyPatch, ahead: int, processes: int, made: bool
) -> None:
    pinned: list[Tensor] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(Tensor, "pin_memory", lambda tensor: pinned.append(tensor) or tensor)
    monkeypatch.setattr(lazy, "DataLoader", PinsItself)
    monkeypatch.setattr(PinsItself, "asked", [])
    data = Made() if made else TensorDataset(X, torch.arange(8))
    for pins in (False, True):
        loader = DataLoader(data, 4, shuffle=True, num_workers=processes, pin_memory=pins)
        current = new_pass(0, 0, as_reader(loader), 4, seed=1)
        leases = SampleLeases().of(0, Segment(0, 8, 0), 4, fixed=False, counted=False)
        batches = loaded(current, leases, torch.device("cpu"), ahead=ahead, channels_last=False)
        rows = torch.cat([batch[0] for _, batch in batches])
        assert torch.equal(rows, X[current.order])
        if made and processes:
            assert PinsItself.asked.pop() is pins and not pinned
        else:
            assert len(pinned) == (4 if pins else 0)


def test_members_agree_on_a_chunk_although_shares_change_in_between() -> None:
    def work(rank: int, arena: Any) -> tuple[int, float, int]:
        claims = SharedLeases(arena)
        claims.begin_teams()
        shares = [0.25, 0.25] if rank == 0 else [0.2, 0.2]
        arena.sleep(float(rank))
        want = round(100 * sum(shares))
        found = claims.next_of_team(0, Segment(0, 1000, 0), want, [0, 1], shares)
        return found.samples, found.share, found.whole

    assert scripted(2, work, 0) == [(25, 0.5, 50), (25, 0.5, 50)]


def test_a_new_pass_begins_anew_for_a_member_that_had_read_ahead() -> None:
    def work(rank: int, arena: Any) -> list[int]:
        claims, seen = SharedLeases(arena), []
        claims.begin_teams()
        for _ in range(5 + rank):
            claims.next_of_team(0, Segment(0, 1000, 0), 20, [0, 1], [0.5, 0.5])
        arena.barrier()
        segment = Segment(0, 200, 0)
        while found := claims.next_of_team(1, segment, 20, [0, 1], [0.5, 0.5]):
            seen.extend(range(found.start, found.end))
        return seen

    first, second = scripted(2, work, 0)
    assert sorted(first + second) == list(range(200))
    assert len(first) == len(second)
