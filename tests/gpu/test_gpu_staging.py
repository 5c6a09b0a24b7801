"""What only a real device can show: pinned memory, streams, and optimizers that live on it."""

from __future__ import annotations

import mmap
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import phalanx
from phalanx.sync.state.optimizer_state import export_tensors, load_tensors
from phalanx.sync.state.replica import Replica
from phalanx.sync.state.staging import Staging
from phalanx.train.checkpoint.kept_state import random_state, restore_random

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
GPU = torch.device("cuda:0")


def _mapped(count: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(-1, count * 4), dtype=torch.float32, count=count)


def test_mapped_memory_is_pinned_and_given_back() -> None:
    staging, region = Staging(GPU), _mapped(1 << 20)
    staging.pin([region, torch.empty(0)])
    assert staging._pinned == [region.data_ptr()]
    on_gpu = torch.arange(1 << 20, dtype=torch.float32, device=GPU)
    staging.fetch([(region, on_gpu)])
    assert torch.equal(region, on_gpu.cpu())
    region.mul_(2.0)
    staging.fetch([(on_gpu, region)])
    assert torch.equal(on_gpu.cpu(), region)
    staging.unpin()
    assert not staging._pinned
    staging.pin([region])  # it was let go: this would fail else
    assert staging._pinned
    staging.unpin()


def test_memory_that_cannot_be_pinned_is_used_all_the_same() -> None:
    staging, region = Staging(GPU), _mapped(1000)
    staging.pin([region, region])  # the second time it fails
    assert len(staging._pinned) == 1
    assert float(torch.ones(3, device=GPU).sum()) == 3.0  # the error is not told here instead
    staging.unpin()
    staging.fetch([(region, torch.full((1000,), 7.0, device=GPU))])
    assert bool((region == 7.0).all())


def test_gradients_are_collected_while_the_gpu_still_computes() -> None:
    model = nn.Sequential(*(nn.Linear(512, 512) for _ in range(20))).to(GPU)
    replica = Replica(torch.optim.SGD(model.parameters(), lr=0.1), 3)
    layout = replica.layouts[0]
    for _ in range(3):
        shards = [torch.empty(b - a) for a, b in map(layout.bounds, range(3))]
        model(torch.randn(4096, 512, device=GPU)).square().mean().backward()
        (collector,) = replica.collector([shards])
        assert collector.collect() is None
        wanted = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        assert torch.equal(torch.cat(shards), wanted.cpu())
        replica.drop_gradients()


@pytest.mark.parametrize("options", [{}, {"fused": True}, {"capturable": True}])
def test_the_state_of_an_optimizer_on_a_gpu_goes_out_and_back(options: dict[str, bool]) -> None:
    def trained(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(0)
        model = nn.Linear(5, 3).to(GPU)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1, **options)
        for _ in range(steps):
            step(model, optimizer)
        return model, optimizer

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.ones(2, 5, device=GPU)).square().sum().backward()
        optimizer.step()

    model, optimizer = trained(3)
    other, fresh = trained(0)
    other.load_state_dict(model.state_dict())
    load_tensors(Replica(fresh, 1), export_tensors(Replica(optimizer, 1)))
    step(model, optimizer)
    step(other, fresh)
    assert torch.equal(model.weight, other.weight)


def test_adagrad_made_before_the_model_was_moved(tmp_path: Path) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
    x, y = torch.randn(64, 4), torch.randint(0, 2, (64,))
    phalanx.fit(
        model, optimizer=optimizer, loss=nn.CrossEntropyLoss(), train=(x, y), epochs=1, batch=16
    )
    assert model.weight.is_cuda


def test_random_numbers_of_the_gpu_go_on_where_they_were() -> None:
    torch.cuda.init()
    state = random_state()
    wanted = torch.rand(5, device=GPU)
    torch.rand(100, device=GPU)
    restore_random(state)
    assert torch.equal(torch.rand(5, device=GPU), wanted)
