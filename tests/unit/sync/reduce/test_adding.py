"""Sums of slices are the same bit for bit, whichever way is the faster one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from phalanx.sync.reduce.reducer import MANY, adding


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("members", [0, 1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_threads_add_up_what_one_thread_adds_up(
    members: int, dtype: torch.dtype, threads: None
) -> None:
    torch.manual_seed(0)
    rows = [torch.randn(MANY + 70_001).to(dtype) for _ in range(members + 1)]
    count, found = MANY + 5, []
    for number in (3, 1):
        torch.set_num_threads(number)
        total = rows[0].clone()
        adding(total, rows[1:])(1 / 3, count)
        found.append(total)
    assert torch.equal(*found)
    assert torch.equal(found[0][count:], rows[0][count:])
    wanted = (torch.stack(rows).double().sum(0) / 3)[:count]
    near = 0.05 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(found[0][:count].double(), wanted, rtol=near, atol=near)
