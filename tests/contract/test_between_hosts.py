"""The contract between two hosts, in short; the whole: ``PHALANX_TEST_HOSTS=2 pytest …``."""

from __future__ import annotations

from pathlib import Path

import pytest
import ranks
import torch
from devices import AWAY
from strategy_cases import is_lockstep
from training import Training

SPECS = [
    "allreduce",
    "bsp",
    "async",
    "ssp:bound=3",
    "groups:size=2",
    "localsgd:every=3",
    "async+topk:ratio=0.25",
    "allreduce@0.5/async",
]
WORKERS = 3  # two on the first host, one on the second

pytestmark = pytest.mark.skipif(
    AWAY or ranks.HOSTS > 1, reason="the whole contract runs elsewhere already"
)


@pytest.mark.parametrize("spec", SPECS)
def test_on_two_hosts_as_on_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    monkeypatch.setattr(ranks, "HOSTS", 2)
    monkeypatch.setattr(ranks, "places", lambda: None)
    found = Training(tmp_path / "two", spec, WORKERS).run()
    assert found.counts() == found.once()
    states = [found.state(rank) for rank in range(WORKERS)]
    for name, value in states[0].items():
        assert all(torch.equal(value, state[name]) for state in states), name
    if is_lockstep(spec):
        monkeypatch.setattr(ranks, "HOSTS", 0)
        expected = Training(tmp_path / "one", spec, WORKERS).run().state()
        for name, value in expected.items():
            assert torch.allclose(states[0][name], value, rtol=0, atol=1e-5), name
