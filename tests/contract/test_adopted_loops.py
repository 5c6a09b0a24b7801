"""Ordinary scripts of many kinds, adopted or joining, held against the same in plain Python.

Not against a run with one worker: what is wrong there would be wrong in both. In view ``parts``
either the workers end where one process ends, or the run is refused for a reason that is known
here, with why the training would have been another. Each sample is seen as often as alone, counted
in the script's own loop. In view ``whole`` nothing is refused that plain Python trains, and each
worker's script sees what it would alone.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from adopted_runs import Ended, Result, adopted, alone, joined, seen_alone
from adopted_scripts import Loop, joined_loop_of, loop_of, short_loop
from adopted_text import text_of
from devices import AWAY
from hypothesis import assume, example, given, reject
from hypothesis import strategies as st
from on_hosts import HOSTS
from plain_compare import assert_near, assert_same_optimizer, assert_same_state
from strategy_cases import NAMES, examples, is_lockstep

from phalanx.core.errors import InputError

pytestmark = pytest.mark.skipif(AWAY or HOSTS > 1, reason="held against plain Python, in turns")
OTHERS = ["async", "ssp:bound=3", "localsgd:every=3", "bsp", "allreduce@0.5/async"]
Folders = pytest.TempPathFactory


REFUSALS: list[tuple[str, Callable[[Loop], bool]]] = [
    # Each worker's sum is over its part: gradients would shrink with the workers.
    (
        "the loss is a sum over the batch",
        lambda loop: loop.is_sum or (loop.joined and loop.loss == "weighted mean"),
    ),
    # The mean of roots over parts is another than the root over the batch.
    ("a function of the whole batch", lambda loop: loop.loss == "root"),
    # A sum over a constant grows with the batch, a weighted mean does not.
    (
        "it cannot be seen whether that number depends on the batch",
        lambda loop: "sum" in loop.loss or loop.loss == "weighted mean",
    ),
    # Parts with fewer selected samples would count as much as those with more.
    ("a mean over a selection of the batch", lambda loop: loop.loss == "selected"),
    # Each batch has another sum of weights, and one gradient may hold several of them.
    (
        "is a weighted mean, and several losses are accumulated",
        lambda loop: loop.loss == "class weights" and (not loop.steps_each_batch),
    ),
    # What was read is the sum over all workers, what is added is one worker's.
    (
        "gradients were read, and another backward pass added to them",
        lambda loop: loop.is_sum and loop.accumulate > 1,
    ),
    # A layer is thawed in the middle of a pass, where free-running workers do not all come by.
    ("the workers diverged", lambda loop: loop.branch.endswith("within")),
    # Of a single sample a sum and a mean look alike, and its worker counts it as a mean.
    (
        "the workers do not agree whether the loss is a mean or a sum",
        lambda loop: loop.is_sum or "sum" in loop.loss,
    ),
    # A free-running worker's change would be lost, or undo the others' updates.
    (
        "the script changes the weights itself between steps, which workers train apart",
        lambda loop: True,
    ),
    # Free-running workers would leave it after other samples, and evaluate in between.
    ("left its loop after", lambda loop: loop.through in ("islice", "next")),
    # A worker would have no part of any batch.
    ("the batch of 5 is smaller than the", lambda loop: loop.batch == 5),
]
"""What a refusal says, and which loops may be refused so; above it, how they would train if not."""


def _written(loop: Loop, folder: Path) -> Path:
    path = folder / "train.py"
    path.write_text(text_of(loop), encoding="utf-8")
    return path


def _alone(script: Path) -> Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return alone(script)
        except RuntimeError:  # clipping where nothing has a gradient yet, for example
            reject()


def _adopted(
    loop: Loop, script: Path, workers: int, folder: Path, strategy: str, view: str = "parts"
) -> list[Ended] | None:
    """``None``: refused, for a reason that is known, with a remedy."""
    start = joined if loop.joined else partial(adopted, view=view)
    # Every second script whose losses are sums is run by somebody who says so.
    says = view == "parts" and loop.is_sum and loop.seed % 2 and not loop.joined
    declared: dict[str, Any] = {"loss": "sum"} if says else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return start(script, workers, folder, strategy=strategy, **declared)
    except UnboundLocalError:  # of so few batches a free-running worker may get none at all
        assert not is_lockstep(strategy)
        return None
    except InputError as error:
        refusals = REFUSALS if workers > 1 and view == "parts" else []
        known = [words for words, may in refusals if may(loop)]
        assert any(words in error.cause for words in known), f"refused without a reason: {error}"
        assert error.remedy
        return None


def _assert_each_once(loop: Loop, found: list[Ended], wanted: Result) -> None:
    seen = sum((ended.seen() for ended in found), Counter[tuple[int, int]]())
    if loop.dropout and len(found) > 1:  # which alone draws from the stream that orders samples
        assert seen.total() == seen_alone(wanted).total()
    else:
        assert seen == seen_alone(wanted)


def assert_as_alone(found: Result, wanted: Result) -> None:
    for name in ("weights", "average", "critic"):
        if name in wanted:
            assert_same_state(found[name], wanted[name], name)
    for name in ("optimizer", "saved"):
        if name in found:
            assert_same_optimizer(found[name], wanted[name], name)
    for name in ("figures", "rates", "norms"):
        assert_near(torch.tensor(found[name]), torch.tensor(wanted[name]), name)
    assert found["epochs"] == wanted["epochs"]


def _is_finite(result: Result) -> bool:
    return all(bool(value.isfinite().all()) for value in result["weights"].values())


def _hold_against_plain_python(loop: Loop, workers: int, view: str, folders: Folders) -> None:
    folder = folders.mktemp("adopted")
    script = _written(loop, folder)
    wanted = _alone(script)
    found = _adopted(loop, script, workers, folder / "run", "allreduce", view)
    if found is None:
        return
    if view == "parts":
        assert _is_finite(wanted)
        _assert_each_once(loop, found, wanted)
    assert found[0].result.keys() == wanted.keys()  # what is saved, perhaps by the first alone
    for ended in found if loop.compares or workers == 1 else ():
        assert_as_alone(ended.result, wanted)
        if view == "whole" or workers == 1:
            losses = (torch.tensor(result["losses"]) for result in (ended.result, wanted))
            assert_near(*losses, "loss")
        assert view == "parts" or ended.result["seen"] == wanted["seen"]


def _is_settled(loop: Loop) -> bool:
    """Not among what is not decided yet."""
    # Reads gradients that are sums, only to zero them.
    return not (loop.is_sum and loop.zero == "filled")


def _is_settled_apart(loop: Loop) -> bool:
    """The same where workers go through the loop as often as they can, not equally often."""
    return loop.through != "next"  # by len(loader)


EVERY = st.integers(0, 1 << 40).map(loop_of)
LOOPS = EVERY.filter(_is_settled)
JOINED = st.integers(0, 1 << 40).map(joined_loop_of).filter(_is_settled)
WORKERS = st.sampled_from((1, 2, 3, 4))


@examples(10)
@example(loop=loop_of(20), workers=2)  # a weighted mean by hand
@example(loop=loop_of(194), workers=3)  # the same where one worker has a single sample
@example(loop=loop_of(9115800), workers=2)  # leaves a seeded loader right after its last batch
@example(loop=loop_of(124297), workers=3)  # steps after a pass without a gradient
@given(loop=LOOPS, workers=WORKERS)
def test_adopted_as_alone(tmp_path_factory: Folders, loop: Loop, workers: int) -> None:
    _hold_against_plain_python(loop, workers, "parts", tmp_path_factory)


@examples(10)
@example(loop=loop_of(20), workers=2)
@given(loop=EVERY, workers=st.sampled_from((2, 3)))
def test_whole_as_alone(tmp_path_factory: Folders, loop: Loop, workers: int) -> None:
    _hold_against_plain_python(loop, workers, "whole", tmp_path_factory)


@examples(24)
@example(loop=short_loop(clip="norm", samples=33), workers=3)  # the last batch is one sample
@example(loop=short_loop(branch="added within", optimizer="adamw", clip="look"), workers=2)
@example(loop=short_loop(scaled="run", accumulate=2, clip="norm"), workers=2)
@given(loop=JOINED, workers=WORKERS)
def test_joined_as_alone(tmp_path_factory: Folders, loop: Loop, workers: int) -> None:
    _hold_against_plain_python(loop, workers, "parts", tmp_path_factory)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@examples(300)
@given(loop=JOINED, workers=WORKERS)
def test_three_hundred_joined_loops_as_alone(
    tmp_path_factory: Folders, loop: Loop, workers: int
) -> None:
    _hold_against_plain_python(loop, workers, "parts", tmp_path_factory)


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("view", ["parts", "whole"])
@examples(300)
@given(loop=EVERY, workers=WORKERS)
def test_three_hundred_loops_as_alone(
    tmp_path_factory: Folders, view: str, loop: Loop, workers: int
) -> None:
    assume(view == "whole" or _is_settled(loop))
    _hold_against_plain_python(loop, workers, view, tmp_path_factory)


def _sees_each_once(loop: Loop, strategy: str, workers: int, folders: Folders) -> None:
    assume(is_lockstep(strategy) or _is_settled_apart(loop))
    folder = folders.mktemp("adopted")
    script = _written(loop, folder)
    wanted = _alone(script)
    for ended in (found := _adopted(loop, script, workers, folder / "run", strategy)) or ():
        assert _is_finite(ended.result)
    whole = loop.leaves_at == 99 and loop.through not in ("islice", "next")
    if found is not None and (whole or is_lockstep(strategy)):
        _assert_each_once(loop, found, wanted)
    # A worker that runs freely has a best epoch of its own.
    for ended in found if found is not None and loop.joined and not loop.best else ():
        for name, value in ended.result["weights"].items():
            assert torch.equal(value, found[0].result["weights"][name]), name


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("strategy", OTHERS)
@examples(60)
@given(loop=LOOPS, workers=st.sampled_from((2, 3, 4)))
def test_each_sample_once_under_every_other_strategy(
    tmp_path_factory: Folders, strategy: str, loop: Loop, workers: int
) -> None:
    _sees_each_once(loop, strategy, workers, tmp_path_factory)


@pytest.mark.parametrize("strategy", [name for name in NAMES if name != "allreduce"])
@examples(3)
@given(loop=JOINED, workers=st.sampled_from((2, 3)))
def test_joined_under_every_other_strategy(
    tmp_path_factory: Folders, strategy: str, loop: Loop, workers: int
) -> None:
    _sees_each_once(loop, strategy, workers, tmp_path_factory)


@pytest.mark.parametrize("strategy", OTHERS)
@examples(2)
@example(loop=loop_of(4177), workers=4)  # leaves its loop early, then evaluates on shuffled data
@given(loop=LOOPS, workers=st.sampled_from((2, 3)))
def test_each_sample_once(
    tmp_path_factory: Folders, strategy: str, loop: Loop, workers: int
) -> None:
    _sees_each_once(loop, strategy, workers, tmp_path_factory)
