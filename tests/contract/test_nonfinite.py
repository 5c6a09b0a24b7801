"""Numbers that are not finite, on one worker: the step does not count, for all alike, and it is
said; or the run fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ranks
import torch
from devices import on_device
from ranks import as_ranks
from strategy_cases import EVERY, NAMES
from torch import Tensor, nn

import phalanx
from phalanx.core.errors import NotFinite
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.core.spec.codecs import CODECS
from phalanx.observe.summary.summary import summarise
from phalanx.report.findings import nonfinite_sentence
from phalanx.train.checkpoint import checkpoint_index as shelf
from phalanx.train.step.nonfinite import MOST_IN_A_ROW

WORKERS = 3
BAD = 1
"""The worker on which it happens,"""
KINDS = {2: "loss nan", 4: "loss inf", 6: "gradient nan", 8: "gradient inf", 10: "gradient 1e30"}
"""and at which of its steps. The last is finite, and its square is not."""
ALL = ["single", *EVERY]
CODECS_IN_TURN = [f"{NAMES[i % len(NAMES)]}+{codec}" for i, codec in enumerate(CODECS.names())]
EVERY_CODEC = [f"{name}+{codec}" for name in NAMES for codec in CODECS.names()]
torch.manual_seed(4)
X = torch.randn(360, 6)
Y = (X[:, 0] + X[:, 1] > 0).long()


class Loop:
    """A small training of which some numbers become something else."""

    def __init__(self, folder: Path, spec: str, kinds: dict[int, str], **settings: Any) -> None:
        self.folder, self.spec, self.kinds = folder, spec, kinds
        self.settings, self.clip = settings, None
        self.workers = 1 if spec == "single" else WORKERS
        self.bad = BAD % self.workers
        self.taken: list[list[bool]] = [[] for _ in range(self.workers)]
        """Of each worker's steps, whether they changed its weights."""

    def run(self) -> list[tuple[dict[str, Tensor], dict[str, Any]]]:
        return as_ranks(
            self.workers, self.folder, self.work, RunSettings(strategy=self.spec, **self.settings)
        )

    def work(self, rank: int) -> tuple[dict[str, Tensor], dict[str, Any]]:
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        run = phalanx.join(model, optimizer)
        kind, step = "", 0

        def spoil(gradient: Tensor) -> Tensor:
            if kind.startswith("gradient"):
                gradient = gradient.clone()
                gradient.view(-1)[3] = float(kind.split()[1])
            return gradient

        model[0].weight.register_hook(spoil)
        for _ in run.epochs(2):
            for x, y in run.batches((X, Y), batch=18):
                step += 1
                kind = self.kinds.get(step, "") if rank == self.bad else ""
                error = nn.functional.cross_entropy(model(x), y)
                run.backward(error * float(kind.split()[1]) if "loss" in kind else error)
                before = model[2].bias.detach().clone()
                run.step(clip=self.clip)
                self.taken[rank].append(not torch.equal(before, model[2].bias))
        return dict(model.state_dict()), optimizer.state_dict()


def _assert_sound(loop: Loop, found: list[tuple[dict[str, Tensor], dict[str, Any]]]) -> None:
    for weights, _ in found:
        assert all(bool(value.isfinite().all()) for value in weights.values())
    summary = summarise(RunPaths(loop.folder))
    assert summary.nonfinite_steps == len(loop.kinds)
    told = [(one.step, one.what) for one in summary.nonfinite]
    assert told == [(n, f"the {k.split()[0]} of worker {loop.bad}") for n, k in KINDS.items()]
    sentence = nonfinite_sentence(summary)
    assert sentence is not None
    assert sentence.startswith("Not finite: 5 steps were skipped, the first in epoch 1 (the loss")
    assert summary.train_loss is not None


@pytest.mark.parametrize(
    "spec",
    [
        *ALL,
        *CODECS_IN_TURN,
        *(pytest.param(s, marks=pytest.mark.slow) for s in EVERY_CODEC if s not in CODECS_IN_TURN),
    ],
)
def test_one_bad_number_does_not_count_and_is_told(tmp_path: Path, spec: str) -> None:
    loop = Loop(tmp_path, spec, KINDS)
    _assert_sound(loop, loop.run())


@pytest.mark.parametrize("spec", ["single", "allreduce", "bsp", "allreduce+int8"])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_in_lockstep_nothing_of_the_step_is_taken(
    tmp_path: Path, spec: str, clip: float | None
) -> None:
    loop = Loop(tmp_path, spec, KINDS)
    loop.clip = clip  # type: ignore[assignment]
    found = loop.run()
    _assert_sound(loop, found)
    for taken, (_, state) in zip(loop.taken, found, strict=True):
        assert [n for n, moved in enumerate(taken, 1) if not moved] == list(KINDS)
        steps = {float(slots["step"]) for slots in state["state"].values()}
        assert steps == {len(taken) - len(KINDS)}


HOSTS = ["allreduce", "bsp", "ssp:bound=3", "localsgd:every=3", "allreduce+topk:ratio=0.25",
         "bsp+int8", "groups:size=2+powersgd", "async+int4"]  # fmt: skip


@pytest.mark.skipif(ranks.HOSTS > 1, reason="the whole contract runs there already")
@pytest.mark.parametrize("spec", HOSTS)
def test_between_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: str) -> None:
    monkeypatch.setattr(ranks, "HOSTS", 2)
    monkeypatch.setattr(ranks, "places", lambda: None)
    loop = Loop(tmp_path, spec, KINDS)
    found = loop.run()
    _assert_sound(loop, found)
    for name, value in found[0][0].items():
        assert all(torch.equal(value, weights[name]) for weights, _ in found), name


@pytest.mark.parametrize("spec", ["single", "allreduce", "bsp", "async", "localsgd:every=3"])
@pytest.mark.parametrize("stop", [True, False])
def test_too_many_in_a_row_end_the_run(tmp_path: Path, spec: str, stop: bool) -> None:
    kinds = dict.fromkeys(range(3, 99), "gradient nan")
    loop = Loop(tmp_path, spec, kinds, on_nonfinite="stop" if stop else "skip")
    with pytest.raises(NotFinite, match="not finite, the last at step"):
        loop.run()
    most = 1 if stop else MOST_IN_A_ROW
    assert summarise(RunPaths(tmp_path)).nonfinite_steps == most


@pytest.mark.parametrize(
    ("spec", "factor", "what"),
    [
        ("allreduce", 3e38, "the gradient of worker 0 and 1 more"),
        ("groups:size=2", 3e38, "the gradient of worker 0 and 1 more"),
        ("allreduce+fp16", 2e5, "the sum of all gradients"),
    ],
)
def test_a_sum_that_overflows_does_not_count(
    tmp_path: Path, spec: str, factor: float, what: str
) -> None:
    """Each gradient is finite, and what becomes of them on their way is not."""

    def work(rank: int) -> list[float]:
        torch.manual_seed(7)
        model = nn.Linear(4, 1, bias=False)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=1e-3))
        for _ in run.epochs(1):
            for step, (x,) in enumerate(run.batches((torch.ones(40, 4),), batch=4)):
                run.backward(model(x).mean() * (factor if step == 2 else 1.0))
                run.step()
        return model.weight.detach().flatten().tolist()

    for weights in as_ranks(2, tmp_path, work, RunSettings(strategy=spec)):
        assert on_device(torch.tensor(weights)).isfinite().all()
    assert [r.what for r in summarise(RunPaths(tmp_path)).nonfinite] == [what]


@pytest.mark.parametrize("spec", ["single", "allreduce", "async"])
def test_weights_that_are_not_finite_are_a_failure(tmp_path: Path, spec: str) -> None:
    """Finite gradients, and a rate that is too high for them."""

    def work(rank: int) -> None:
        model = nn.Linear(4, 1)
        run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=3e38))
        for _ in run.epochs(1):
            for (x,) in run.batches((torch.ones(8, 4),), batch=4):
                run.backward(model(x).mean() * 1e3)
                run.step()

    workers = 1 if spec == "single" else 2
    with pytest.raises(NotFinite, match="weights"):
        as_ranks(workers, tmp_path, work, RunSettings(strategy=spec))


def test_a_checkpoint_with_such_weights_is_marked(tmp_path: Path) -> None:
    def work(rank: int) -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        run = phalanx.join(model, optimizer)
        for epoch in run.epochs(3):
            optimizer.param_groups[0]["lr"] = 3e38 if epoch == 1 else 1e-3
            for (x,) in run.batches((torch.ones(8, 4),), batch=4):
                run.backward(model(x).mean() * 1e3)
                run.step()

    with pytest.raises(NotFinite, match="after epoch 2 the weights are not finite; phalanx resume"):
        as_ranks(1, tmp_path, work, RunSettings(strategy="single", checkpoint_epochs=1, keep=1))
    path, manifest, _ = shelf.newest_valid(RunPaths(tmp_path).checkpoints)
    assert (path.name, manifest.epoch, manifest.finite) == ("000001", 0, True)
