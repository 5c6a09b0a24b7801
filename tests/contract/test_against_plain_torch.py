"""Scripts of many kinds, held against the same script in plain torch.

Not against a run of our own with one worker: what is wrong there would be wrong in both.
"""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from devices import AWAY
from hypothesis import given
from hypothesis import strategies as st
from plain_compare import assert_as_plain, hold
from plain_scripts import KINDS, MOMENTUM, Outcome, Script
from plain_worlds import train_plain, train_workers
from strategy_cases import NAMES, examples, is_lockstep

from phalanx.core.errors import InputError

WORKERS = (1, 2, 3)
CLIPS: tuple[Any, ...] = ("norm", "value", "own", "assigned", "look", "step")
OTHERS = [name for name in NAMES if name != "allreduce"]
pytestmark = pytest.mark.skipif(AWAY, reason="held against torch on this processor, digit by digit")


def _script(seed: int) -> Script:
    """Choices that go together in plain torch. By a seed, so that no two are nearly the same."""
    chance = random.Random(seed)

    def one(*values: Any) -> Any:
        return chance.choice(values)

    epochs, batch, samples = one(2, 2, 3), one(6, 8, 11), chance.randint(17, 40)
    length = -(-samples // batch)
    branch = one("none", "none", "used", "odd", "unfrozen", "unfrozen", "added", "added")
    late = (chance.randrange(epochs), chance.randrange(length - 1))
    schedules = ["none", "step"]
    if branch != "added":  # the others count the groups when they are made
        schedules += ["cosine", "onecycle", "onecycle", "lambda", "plateau", "own figure"]
    loss = one("mean", "mean", "mean", "mean by hand", "sum", "sum by hand")
    clip = one("none", "none", "norm", "value", "own", "assigned", "look", "step")
    scaled = one("no", "no", "no", "run", "plain" if clip != "step" else "run")
    moments = [(chance.randrange(epochs), chance.randrange(length)) for _ in range(2)]
    return Script(
        optimizer=one(*KINDS),
        decay=one(0.0, 0.01),
        groups=one(1, 2),
        norm=one(False, True),
        branch=branch,
        late=one(late, (1, 0)),
        frozen_again=one(99, 99, 2),
        samples=samples,
        batch=batch,
        epochs=epochs,
        loss=loss,
        declared=one(True, True, False),
        penalty=loss.startswith("mean") and one(False, True),
        losses=one(1, 1, 2),
        backward=one("run", "plain"),
        accumulate=one(1, 1, 2, 3),
        divided=one(True, True, False),
        last=one("step", "leave"),
        zero=one("none", "top", "bottom", "model"),
        to_none=one(True, False),
        clip=clip,
        clip_each=scaled == "no" and clip in ("norm", "own", "look") and one(False, True),
        schedule=one(*schedules),
        per=one("batch", "step"),
        scheduler_first=one(True, False),
        average=one("none", "averaged", "lerp"),
        saves=tuple(moments[: one(0, 1, 2)]),
        saver=one("all", "first"),
        scaled=scaled,
    )


SCRIPTS = st.integers(0, 1 << 40).map(_script)


def may_be_refused(script: Script, workers: int, strategy: str = "allreduce") -> list[str]:
    """For what ``script`` may be refused, as the refusal has to say; empty: it may not."""
    reasons = {
        # A sum over the batch that is not declared.
        "is a sum": script.sums and not script.declared,
        # A sum, whose gradients are read between two backward passes.
        "gradients were read": script.sums and script.clip_each and script.accumulate > 1,
        # A change inside a pass, to which not every worker comes where batches are taken freely.
        "diverged": script.branch in ("unfrozen", "added") and not is_lockstep(strategy),
        # Rates that follow each worker's own figure.
        "learning rates": script.schedule == "own figure",
    }
    return [reason for reason, may_be in reasons.items() if may_be and workers > 1]


Folders = pytest.TempPathFactory


def _trained(script: Script, workers: int, strategy: str, folders: Folders) -> list[Outcome] | None:
    """``None``: refused, for a reason that is known, with a remedy."""
    try:
        return train_workers(script, workers, folders.mktemp("script"), strategy)
    except InputError as error:
        known = may_be_refused(script, workers, strategy)
        assert any(reason in error.cause for reason in known), f"refused without a reason: {error}"
        assert error.remedy
        return None


def _looks_like_a_mean(script: Script, workers: int) -> bool:
    """A sum that is not declared, divided by what every worker's part of every batch happens to
    be: no graph tells it from a mean by hand. The page about porting scripts says so."""
    whole = script.batch % workers == 0 and script.samples % script.batch == 0
    undeclared = script.sums and not script.declared and script.divided
    return undeclared and whole and script.accumulate == script.batch // workers


def _hold_against_plain_torch(script: Script, folders: Folders) -> None:
    wanted = train_plain(script)
    assert all(bool(value.isfinite().all()) for value in wanted.weights.values())
    for workers in WORKERS:
        if _looks_like_a_mean(script, workers):
            continue
        found = _trained(script, workers, "allreduce", folders)
        if found is None:
            continue
        if workers > 1 and script.schedule == "own figure":
            _assert_alike(found)  # no worker has the figure that one process would have
            continue
        for outcome in found:
            assert_as_plain(outcome, wanted)


def _assert_alike(found: list[Outcome]) -> None:
    for outcome in found[1:]:
        for name, value in found[0].weights.items():
            assert torch.equal(outcome.weights[name], value), name


IDLE = replace(MOMENTUM, samples=33)  # the last batch has one sample: the others have none of it
MOMENTS = {"saves": ((0, 0), (0, 3), (1, 1), (1, 2))}
EACH = {"clip": "norm", "clip_each": True, "accumulate": 2}
LATER: dict[str, dict[str, Any]] = {
    "at an epoch": {"decay": 0.01, "optimizer": "momentum", "late": (1, 0)},
    "after a few batches": {"decay": 0.01, "optimizer": "adamw", "late": (0, 3)},
    "and is frozen again": {"optimizer": "momentum", "frozen_again": 2, "epochs": 3},
    "and is clipped in the batch of the change": {"late": (0, 3), "clip": "norm"},
    "and is looked at in the batch of the change": {"late": (0, 3), "clip": "look"},
}
TABLE: dict[str, Script] = {
    **{f"clip: {c}": replace(MOMENTUM, clip=c) for c in CLIPS},
    **{f"clip: {c}, idle": replace(IDLE, clip=c) for c in ("norm", "look", "own")},
    "clip: plain backward": replace(MOMENTUM, clip="norm", backward="plain"),
    "clip each time": replace(MOMENTUM, **EACH),
    "clip each time, plain backward": replace(MOMENTUM, **EACH, backward="plain"),
    "look each time": replace(MOMENTUM, **{**EACH, "clip": "look"}),
    "accumulate": replace(MOMENTUM, accumulate=4),
    "accumulate, added up": replace(
        MOMENTUM, accumulate=4, divided=False, last="leave", backward="plain"
    ),
    "accumulate, idle": replace(IDLE, accumulate=3),
    **{
        f"zero: {zero}, {'none' if none else 'zeros'}": replace(
            MOMENTUM, accumulate=4, last="leave", zero=zero, to_none=none
        )
        for zero in ("top", "bottom", "model")
        for none in (True, False)
    },
    **{
        f"scaler: {scaled}, clip {clip}": replace(MOMENTUM, scaled=scaled, clip=clip, accumulate=2)
        for scaled in ("run", "plain")
        for clip in ("none", "norm")
    },
    "scaler, idle": replace(IDLE, scaled="run", epochs=3),
    "average, idle": replace(IDLE, average="lerp"),
    **{
        f"{branch} {when}": Script(branch=branch, **given)
        for branch in ("unfrozen", "added")
        for when, given in LATER.items()
    },
    "unfrozen in a batch that leaves workers idle": replace(IDLE, branch="unfrozen", late=(0, 4)),
    "frozen from the second epoch on": replace(MOMENTUM, branch="used", frozen_again=1),
    "saved by all": Script(optimizer="momentum", saver="all", **MOMENTS),
    "saved by the first": Script(optimizer="adam", **MOMENTS),
    "saved with an unfrozen block": Script(optimizer="adagrad", branch="unfrozen", **MOMENTS),
    "saved with an added group": Script(
        optimizer="momentum", branch="added", saver="all", **MOMENTS
    ),
    "saved between steps": Script(optimizer="adamw", accumulate=2, zero="top", **MOMENTS),
    "plateau": replace(MOMENTUM, schedule="plateau", epochs=4),
    "one cycle, made before joining": Script(
        samples=33, epochs=3, schedule="onecycle", scheduler_first=True
    ),
    "one cycle, idle": replace(IDLE, epochs=3, schedule="onecycle"),
    "a function of the batch, idle": replace(IDLE, epochs=3, schedule="lambda"),
    **{
        f"one cycle of accumulated steps of {kind}": Script(
            optimizer=kind, schedule="onecycle", per="step", accumulate=3
        )
        for kind in ("sgd", "adam")
    },
    "a declared sum": replace(MOMENTUM, loss="sum"),
    "a penalty of the parameters": replace(MOMENTUM, penalty=True),
}
"""Each choice by itself; the generated scripts below mix them."""


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2, 3])
@pytest.mark.parametrize("name", TABLE)
def test_one_choice_as_in_plain_torch(tmp_path: Path, name: str, workers: int) -> None:
    hold(TABLE[name], workers, tmp_path)


@examples(16)
@given(script=SCRIPTS)
def test_trains_as_in_plain_torch(tmp_path_factory: Folders, script: Script) -> None:
    _hold_against_plain_torch(script, tmp_path_factory)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@examples(300)
@given(script=SCRIPTS)
def test_three_hundred_scripts_train_as_in_plain_torch(
    tmp_path_factory: Folders, script: Script
) -> None:
    _hold_against_plain_torch(script, tmp_path_factory)


def _ends(script: Script, strategy: str, workers: int, folders: Folders) -> None:
    found = _trained(script, workers, strategy, folders)
    for outcome in found or ():
        for name, value in outcome.weights.items():
            assert bool(value.isfinite().all()), name
            assert found is not None
            assert torch.equal(value, found[0].weights[name]), name


@pytest.mark.parametrize("strategy", OTHERS)
@examples(5)
@given(script=SCRIPTS, workers=st.sampled_from((2, 3)))
def test_runs_under_every_other_strategy(
    tmp_path_factory: Folders, strategy: str, script: Script, workers: int
) -> None:
    _ends(script, strategy, workers, tmp_path_factory)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("strategy", OTHERS)
@examples(100)
@given(script=SCRIPTS, workers=st.sampled_from((2, 3)))
def test_a_hundred_scripts_run_under_every_other_strategy(
    tmp_path_factory: Folders, strategy: str, script: Script, workers: int
) -> None:
    _ends(script, strategy, workers, tmp_path_factory)
