"""How batches come to a training."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset

from phalanx.data import lazy
from phalanx.data.reader import as_reader
from phalanx.policies.sample_assignment import Segment
from phalanx.train.engine.sample_leases import SampleLeases
from phalanx.train.samples.epoch_batches import loaded, new_pass

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
