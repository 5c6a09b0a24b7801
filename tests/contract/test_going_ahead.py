"""Gradients that leave for other hosts before their step, and come to the same in the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from devices import AWAY
from torch import nn
from training import CLASSES, FEATURES, Training, made_data

import phalanx
from phalanx.sync.collective.algorithms import ahead, striped
from phalanx.sync.collective.algorithms.ahead import AheadSum
from phalanx.sync.collective.algorithms.striped import StripedSum
from phalanx.sync.reduce import early_gradients
from phalanx.sync.state.gradients import get_grad
from phalanx.sync.state.staging import Staging
from phalanx.train.api.run import Run

pytestmark = pytest.mark.skipif(
    AWAY or ranks.HOSTS > 1, reason="the whole contract goes ahead there"
)


SEVERAL = [(2, 2), (3, 3), (3, 2), (4, 2), (6, 2), (4, 3)]
"""Workers and hosts: of several on a host one adds up what all have."""


def count_early(kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often sums of this ``kind`` went before they were offered, and went in vain."""
    found: Counter[str] = Counter()
    ready, discard = kind.ready, kind.discard

    def counted(self: Any, low: int) -> None:
        found["early"] += low > 0
        ready(self, low)

    def counted_discard(self: Any) -> None:
        found["in vain"] += 1
        discard(self)

    monkeypatch.setattr(kind, "ready", counted)
    monkeypatch.setattr(kind, "discard", counted_discard)
    return found


def deep_model() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 9), nn.Tanh(), nn.Linear(9, 9), nn.Tanh(), nn.Linear(9, CLASSES)
    )


@pytest.fixture(params=["host", "device"])
def counts(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often something went before it was offered, and how often it went in vain; from memory
    of the host, and as from a device: through copies, by several connections."""
    if request.param == "device":
        monkeypatch.setattr(Staging, "away", True)
        monkeypatch.setattr(striped, "WORTHWHILE", 0)
    kind = StripedSum if request.param == "device" else AheadSum
    monkeypatch.setattr(ahead, "WORTHWHILE", 0)
    monkeypatch.setattr(early_gradients, "LEAST", 1)
    monkeypatch.setattr(ranks, "places", lambda: None)
    return count_early(kind, monkeypatch)


Compared = Callable[..., Training]


@pytest.fixture
def compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compared:
    """Trains on several hosts, and on one: both end alike. ``apart`` are settings of the first."""

    def compare(
        kind: type[Training], workers: int, hosts: int = 2, *, spec: str = "allreduce",
        apart: dict[str, Any] | None = None, **options: Any,
    ) -> Training:  # fmt: skip
        options |= {"model": deep_model}
        monkeypatch.setattr(ranks, "HOSTS", hosts)
        found = kind(tmp_path / "apart", spec, workers, settings=apart or {}, **options).run()
        monkeypatch.setattr(ranks, "HOSTS", 0)
        expected = kind(tmp_path / "together", spec, workers, **options).run().state()
        for rank in range(workers):
            for name, value in expected.items():
                assert torch.allclose(found.state(rank)[name], value, rtol=0, atol=1e-6), name
        return found

    return compare


class Meddling(Training):
    """A script of one's own, that does something to its gradients before each step."""

    meddle: Callable[[nn.Module, int], None]
    only: int | None = None
    """The worker that does so, if not all of them."""

    def _work(self, rank: int) -> None:
        model, steps = self.models[rank], 0
        run: Run = phalanx.join(model, self.optimizers[rank])
        for _ in run.epochs(self.epochs):
            for x, y, _ in run.batches(made_data(48), batch=12):
                run.backward(nn.functional.cross_entropy(model(x), y))
                if self.only in (None, rank):
                    self.meddle(model, steps)
                run.step()
                steps += 1


def meddling(meddle: Callable[[nn.Module, int], None], only: int | None = None) -> type[Training]:
    return type("Meddles", (Meddling,), {"meddle": staticmethod(meddle), "only": only})


@pytest.mark.parametrize(("workers", "hosts"), SEVERAL)
def test_a_step_begins_in_the_backward_pass(
    compared: Compared, counts: Counter[str], workers: int, hosts: int
) -> None:
    found = compared(Training, workers, hosts)
    assert found.counts() == found.once()
    assert counts["early"] > (10 if workers == hosts else 0)
    assert not counts["in vain"]


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(("workers", "hosts"), [(2, 2), (3, 3), (4, 2)])
def test_gradients_of_scaled_losses_leave_as_the_step_wants_them(
    compared: Compared, counts: Counter[str], workers: int, hosts: int, accumulate: int
) -> None:
    compared(Training, workers, hosts, apart={"precision": "float16"}, accumulate=accumulate)
    if accumulate == 1:
        assert counts["early"] > (10 if workers == hosts else 0)
        assert not counts["in vain"]


@pytest.mark.parametrize(("workers", "hosts"), SEVERAL)
def test_accumulated_gradients_are_all_there(
    compared: Compared, counts: Counter[str], workers: int, hosts: int
) -> None:
    compared(Training, workers, hosts, accumulate=2)
    assert counts["in vain"] == hosts, "once on each host; then nobody goes ahead for a while"


def halve(model: nn.Module, step: int) -> None:
    """As scripts of old do it, without a trace in the tensor's own version."""
    for parameter in model.parameters():
        if step % 2 and parameter.grad is not None:
            parameter.grad.data.mul_(0.5)


def drop(model: nn.Module, step: int) -> None:
    if step == 3:
        model.zero_grad()


def replace(model: nn.Module, step: int) -> None:
    for parameter in model.parameters():
        if step == 2:
            parameter.grad = torch.ones_like(parameter)


@pytest.mark.parametrize("meddle", [halve, drop, replace])
@pytest.mark.parametrize("workers", [2, 4])
def test_what_a_script_does_to_its_gradients_counts(
    compared: Compared, counts: Counter[str], rested: None, meddle: Any, workers: int
) -> None:
    compared(meddling(meddle), workers)
    assert counts["in vain"] > 0
    assert counts["early"] > 0


@pytest.fixture
def rested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever went in vain tries again at the next step but one."""
    monkeypatch.setattr(early_gradients, "REST", 1)


def halve_unseen(model: nn.Module, step: int) -> None:
    """Reading ``.grad`` is what all workers do together; a hook of a script is one worker's own."""
    for parameter in model.parameters():
        if step % 2 and (gradient := get_grad(parameter)) is not None:
            gradient.mul_(0.5)


@pytest.mark.parametrize("only", [0, 1, 3])
def test_what_one_worker_does_to_its_gradients_counts_for_its_host(
    compared: Compared, counts: Counter[str], rested: None, only: int
) -> None:
    """The first of a host adds up, and has to take back what another one changes."""
    compared(meddling(halve_unseen, only), 4, epochs=4)
    assert counts["in vain"] > 0


class Across(Training):
    """Accumulates over the ends of passes, whose last batch is one sample of one worker."""

    def _work(self, rank: int) -> None:
        model = self.models[rank]
        run: Run = phalanx.join(model, self.optimizers[rank])
        for _ in run.epochs(self.epochs):
            for x, y, _ in run.batches(made_data(13), batch=12):
                run.backward(nn.functional.cross_entropy(model(x), y))
                if run.pending == 3:
                    run.step()


def test_what_an_idle_worker_offered_and_nobody_took(
    compared: Compared, counts: Counter[str]
) -> None:
    """Of three workers on two hosts the last one goes ahead, is idle, and goes on."""
    compared(Across, 3, epochs=3)
    assert counts["early"] > 0
    assert counts["in vain"] > 0


class Freezing(Training):
    """Keeps the graph of its gradients, and freezes a layer while another strategy is at work."""

    def _work(self, rank: int) -> None:
        model = self.models[rank]
        run: Run = phalanx.join(model, self.optimizers[rank])
        for epoch in run.epochs(self.epochs):
            next(reversed(list(model.parameters()))).requires_grad_(epoch != 1)
            for x, y, _ in run.batches(made_data(48), batch=12):
                nn.functional.cross_entropy(model(x), y).backward(create_graph=True)
                run.step()


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
def test_a_frozen_layer_and_kept_graphs(compared: Compared, counts: Counter[str]) -> None:
    compared(Freezing, 2, spec="allreduce@0.3/bsp@0.4/allreduce", epochs=3)
    assert counts["early"] > 0


def test_a_switch_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, counts: Counter[str]
) -> None:
    monkeypatch.setattr(ranks, "HOSTS", 2)
    spec = "allreduce@0.3/async@0.6/allreduce"
    found = Training(tmp_path, spec, 2, model=deep_model, epochs=4).run()
    assert found.counts() == found.once()
    states = [found.state(rank) for rank in range(2)]
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())
    assert counts["early"] > 0
    hooks = [p._post_accumulate_grad_hooks for p in found.models[0].parameters()]
    assert not any(hooks), "the model is the script's own again"


def test_cuts_are_at_parameters_from_the_end() -> None:
    from phalanx.sync.state.layout import make_layout

    sizes = [400_000, 40, 120_000, 80_000, 5]
    layout = make_layout([(0, nn.Parameter(torch.zeros(n))) for n in sizes], 1)
    assert early_gradients.cuts_of(layout) == [520_040, 400_040, 0]
