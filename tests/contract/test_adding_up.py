"""Between hosts a codec loses nothing: what was sent and what is owed are all gradients."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from devices import AWAY
from torch import Tensor, nn

import phalanx
from phalanx.core.settings import RunSettings
from phalanx.train.api.run import Run

CODECS = ["topk:ratio=0.1", "powersgd:rank=1"]
RATE = 0.25
WORKERS = 3  # two on the first host, one on the second

pytestmark = pytest.mark.skipif(AWAY, reason="looks into the hosts' memory")


@pytest.fixture(autouse=True)
def _two_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    if ranks.HOSTS < 2:
        monkeypatch.setattr(ranks, "HOSTS", 2)
        monkeypatch.setattr(ranks, "places", lambda: None)


def _train(run: Run, model: nn.Linear) -> None:
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(45, 12, generator=generator)
    y = torch.randint(0, 5, (45,), generator=generator)
    for _ in run.epochs(4):
        for a, b in run.batches((x, y), batch=9):
            run.backward(nn.functional.cross_entropy(model(a), b))
            run.step()


def _owed(state: dict[str, Tensor], like: Tensor) -> Tensor:
    """What the codec of this worker's stream still keeps."""
    kept = [value for name, value in sorted(state.items()) if name.endswith(".residual")]
    return torch.cat(kept) if kept else torch.zeros_like(like)


def _strategy(run: Run) -> Any:
    return run.engine._phases.strategies[0]  # type: ignore[attr-defined]


def _ranks(folder: Path, spec: str, work: Any) -> list[tuple[Tensor, Tensor, Tensor]]:
    found: list[tuple[Tensor, Tensor, Tensor]] = ranks.as_ranks(
        WORKERS, folder, work, RunSettings(strategy=spec)
    )
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_what_hosts_sum_and_what_they_owe_are_all_gradients(tmp_path: Path, codec: str) -> None:
    """Every host gets the same sum; each leader owes what its messages left out."""

    def work(rank: int) -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(12, 5, bias=False)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=RATE))
        strategy = _strategy(run)
        summing = strategy._reducer._summing
        given, arrived = torch.zeros(60), torch.zeros(60)
        add_up = summing.sum

        def watched(factor: float = 1.0, **how: Any) -> int:
            given.add_(summing._sums[0])
            count: int = add_up(**how)
            arrived.add_(summing._sums[0])
            summing._sums[0].mul_(factor)
            assert count > 0
            return count

        summing.sum = watched
        _train(run, model)
        return given, arrived, _owed(strategy.export_private(), given)

    found = _ranks(tmp_path, f"allreduce+{codec}", work)
    sums = [arrived for _, arrived, _ in found if bool(arrived.any())]
    assert len(sums) == ranks.HOSTS, "one leader on each host"
    assert all(torch.equal(sums[0], other) for other in sums)
    given = torch.stack([one[0] for one in found]).sum(0)
    owed = torch.stack([one[2] for one in found]).sum(0)
    assert bool(given.any()) and bool(owed.any())
    assert torch.allclose(given, sums[0] + owed, atol=1e-4)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("strategy", ["async", "ssp:bound=2"])
def test_what_servers_apply_and_what_workers_owe_are_all_gradients(
    tmp_path: Path, strategy: str, codec: str
) -> None:
    """With plain SGD the parameters themselves say what was applied, whoever pushed it."""

    def work(rank: int) -> tuple[Tensor, Tensor, Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(12, 5, bias=False)
        before = model.weight.detach().flatten().clone()
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=RATE))
        free, given = _strategy(run), torch.zeros(60)
        encode = free._store.encode

        def watched(buffers: Any) -> int:
            given.add_(buffers.flats[0])
            count: int = encode(buffers)
            return count

        free._store.encode = watched
        _train(run, model)
        owed = _owed(free.export_private(), given)
        moved = before - model.weight.detach().flatten()
        return given, owed, moved / (RATE * free._rate_factor)

    found = _ranks(tmp_path, f"{strategy}+{codec}", work)
    given = torch.stack([one[0] for one in found]).sum(0)
    owed = torch.stack([one[1] for one in found]).sum(0)
    applied = found[0][2]  # all began with the first one's parameters
    assert bool(given.any()) and bool(owed.any())
    assert torch.allclose(given, applied + owed, atol=1e-3)
