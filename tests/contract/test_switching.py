"""A switch hands over parameters and optimizer slots bit for bit, and every worker agrees."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from ranks import as_ranks
from strategy_cases import NAMES
from torch import Tensor, nn

import phalanx
from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.core.settings import RunSettings
from phalanx.core.spec import Phase, Spec, known_strategies
from phalanx.observe.events.event_types import Switched, read_events
from phalanx.sync.state.optimizer_state import read_slot
from phalanx.train.api.run import Run
from phalanx.train.control.directives import Directive, Kind
from phalanx.train.engine.shared_engine import SharedEngine

OPTIMIZERS = [
    lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9),
    lambda m: torch.optim.Adam(m.parameters(), lr=1e-2),
]
WORKERS = 3


@dataclass
class Seen:
    """The state around the one switch of a run."""

    before: dict[str, Tensor] = field(default_factory=dict)
    after: dict[str, Tensor] = field(default_factory=dict)
    own: list[dict[str, Tensor]] = field(default_factory=list)
    """What each worker's own optimizer had, where workers trained apart."""
    shown: list[bool] = field(default_factory=list)
    """Whether each worker's model has the parameters that were handed over."""


def _state(engine: SharedEngine) -> dict[str, Tensor]:
    found = engine._phases.current.strategies[0].export_state()
    return {k: v.clone() for k, v in found.items() if not k.startswith("velocity")}


def _own_slots(engine: SharedEngine) -> dict[str, Tensor]:
    replica, names = engine._phases.replicas[0], engine._phases.shared[0].slots[0]
    return {f"{name}.0": read_slot(replica, name)[0] for name in names}


def _spy(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    entering = SharedEngine.enter

    def spied(self: SharedEngine, phase: Phase, spec: Spec, *, regroup: bool) -> float | None:
        if regroup or phase.label == self.phase:
            return entering(self, phase, spec, regroup=regroup)
        self.rest()
        self._phases.drain()  # the last old update of everyone is applied
        seen.own.append(_own_slots(self))
        if self.rank == 0:
            seen.before = _state(self)
        self.barrier()
        applied = entering(self, phase, spec, regroup=regroup)
        if self.rank == 0:
            seen.after = _state(self)
        flat = torch.empty_like(self._phases.shared[0].parameters[0])
        self._phases.replicas[0].copy_out([flat])
        seen.shown.append(torch.equal(flat, self._phases.shared[0].parameters[0]))
        self.barrier()
        return applied

    monkeypatch.setattr(SharedEngine, "enter", spied)


def _switched(folder: Path, strategy: str, optimizer: int) -> list[dict[str, Tensor]]:
    x, y = torch.randn(60, 8), torch.randint(0, 3, (60,))

    def work(rank: int) -> dict[str, Tensor]:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(8, 9), nn.Tanh(), nn.Linear(9, 3))
        made = OPTIMIZERS[optimizer](model)
        loss = nn.functional.cross_entropy
        phalanx.fit(model, optimizer=made, loss=loss, train=(x, y), epochs=3, batch=10)
        return model.state_dict()

    return as_ranks(WORKERS, folder, work, RunSettings(strategy=strategy))


PAIRS = list(itertools.permutations(NAMES, 2))
QUICK = [(old, NAMES[(at + by) % len(NAMES)]) for at, old in enumerate(NAMES) for by in (1, 3, 4)]
"""Each hands over to three others, and is handed over to by three."""


@pytest.mark.parametrize(
    ("old", "new"),
    [pytest.param(*p, marks=() if p in QUICK else pytest.mark.slow) for p in PAIRS],
)
def test_any_strategy_hands_over_to_any_other(
    tmp_path: Path, old: str, new: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy, seen = f"{old}@0.5/{new}", Seen()
    _spy(seen, monkeypatch)
    ended = _switched(tmp_path, strategy, PAIRS.index((old, new)) % 2)
    assert seen.before.keys() == seen.after.keys()
    for name, value in seen.before.items():
        assert torch.equal(value, seen.after[name]), name
    slots = seen.own[0].keys()
    assert slots and all(bool(seen.before[name].any()) for name in slots)
    if known_strategies()[old].local:
        for name in slots:
            mean = torch.stack([own[name] for own in seen.own]).mean(0)
            assert torch.allclose(seen.before[name], mean, atol=1e-6), name
    assert seen.shown == [True] * WORKERS
    for state in ended[1:]:
        assert all(torch.equal(state[k], ended[0][k]) for k in state)
    _assert_told_once(tmp_path, strategy)


def test_a_local_worker_begins_with_the_optimizer_state_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[bool] = []
    begin = SharedEngine._begin

    def spied(self: SharedEngine, *arguments: Any, **options: Any) -> None:
        begin(self, *arguments, **options)
        if self.phase.startswith("localsgd"):
            mine, slots = _own_slots(self), self._phases.shared[0].slots[0]
            begun.extend(torch.equal(mine[f"{name}.0"], slot) for name, slot in slots.items())

    monkeypatch.setattr(SharedEngine, "_begin", spied)
    _switched(tmp_path, "async@0.5/localsgd:every=3", 1)
    assert begun == [True] * WORKERS * 2  # two slots of Adam on each worker


def _assert_told_once(folder: Path, strategy: str) -> None:
    told = [e for e in read_events(RunPaths(folder).events_of(0)) if isinstance(e, Switched)]
    assert len(told) == 1
    names = strategy.replace("@0.5", "").split("/")
    assert [told[0].before, told[0].after] == names
    assert told[0].at_epoch == pytest.approx(1.5)
    assert told[0].pause >= 0


def test_several_phases_and_back(tmp_path: Path) -> None:
    x, y = torch.randn(48, 4), torch.randn(48, 1)

    def work(rank: int) -> None:
        model = nn.Linear(4, 1)
        made = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        phalanx.fit(
            model, optimizer=made, loss=nn.functional.mse_loss, train=(x, y), epochs=4, batch=8
        )

    spec = "allreduce@1e/async@0.5/allreduce@3e/async"
    as_ranks(2, tmp_path, work, RunSettings(strategy=spec))
    told = [e for e in read_events(RunPaths(tmp_path).events_of(0)) if isinstance(e, Switched)]
    assert [(e.before, e.after, e.at_epoch) for e in told] == [
        ("allreduce", "async", 1.0),
        ("async", "allreduce", 2.0),
        ("allreduce", "async", 3.0),
    ]
    assert msgspec.json.encode(told[0])


class Unknown(torch.optim.SGD):
    """Not one of those that the store knows."""


def _commanded(
    folder: Path, strategy: str, command: str, kind: Any = torch.optim.SGD, balance: str = "off"
) -> list[Run]:
    """Two workers, commanded in the first of two epochs."""
    x, y = torch.randn(96, 4), torch.randn(96, 1)

    def work(rank: int) -> Run:
        torch.manual_seed(0)
        model = nn.Linear(4, 1)
        run = phalanx.join(model, kind(model.parameters(), lr=0.01))
        steps, source = itertools.count(1), run.engine.directives.source
        source.look = lambda: Directive(Kind.SWITCH, command) if next(steps) == 3 else None  # type: ignore[method-assign]
        for _ in run.epochs(2):
            for a, b in run.batches((x, y), batch=8):
                run.backward(nn.functional.mse_loss(model(a), b))
                run.step()
        return run

    return as_ranks(2, folder, work, RunSettings(strategy=strategy, balance=balance))


@pytest.mark.parametrize(
    ("command", "kind", "why"),
    [
        ("allreduce@9e/async", torch.optim.SGD, "there are only 2"),
        ("bsp@0.01/async@0.02/allreduce", torch.optim.SGD, "out of order"),
        ("async", Unknown, "Unknown cannot run in the store"),
        ("single", torch.optim.SGD, "one worker"),
    ],
)
def test_a_command_that_cannot_be_followed_is_refused_and_training_goes_on(
    tmp_path: Path, command: str, kind: Any, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    runs = _commanded(tmp_path, "allreduce", command, kind)
    assert [run._parts.schedule.spec.text for run in runs] == ["allreduce", "allreduce"]
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "refused" in line]
    assert why in line


@pytest.mark.parametrize(
    ("before", "after"),
    [("allreduce", "switch:on=straggler"), ("switch:on=straggler", "allreduce")],
)
def test_stragglers_are_watched_for_from_the_command_on(
    tmp_path: Path, before: str, after: str
) -> None:
    """Both begin with allreduce: nothing is switched, only watched."""
    for run in _commanded(tmp_path, before, after, balance="auto"):
        assert run._parts.schedule.spec.text == after
        assert isinstance(run.engine, SharedEngine)
        watch = run.engine.directives.watch
        assert (watch.policy is not None) == (after == "switch:on=straggler")
        assert watch.balances == (after == "allreduce")
