"""Ordinary scripts of many kinds in view ``whole``: every worker ends as plain Python does.

Nothing is refused that plain Python trains, and each worker's script sees and decides what it
would alone: batches, losses, rates, figures, weights.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from adopted_runs import Ended, Result, adopted, alone
from adopted_scripts import Loop, loop_of
from adopted_text import text_of
from devices import AWAY
from hypothesis import example, given, reject
from hypothesis import strategies as st
from on_hosts import HOSTS
from plain_compare import assert_near, assert_same_optimizer, assert_same_state
from test_adopted_loops import _old_objects_aside
from test_against_plain_torch import examples

pytestmark = pytest.mark.skipif(AWAY or HOSTS > 1, reason="held against plain Python, in turns")
__all__ = ["_old_objects_aside"]
Folders = pytest.TempPathFactory
LOOPS = st.integers(0, 1 << 40).map(loop_of)
WORKERS = st.sampled_from((2, 3))


def _alone(script: Path) -> Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return alone(script)
        except RuntimeError:  # clipping where nothing has a gradient yet, for example
            reject()


def _in_whole_view(script: Path, workers: int, folder: Path, **settings: Any) -> list[Ended]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return adopted(script, workers, folder, strategy="allreduce", view="whole", **settings)


def _assert_as_alone(found: Result, wanted: Result) -> None:
    assert found.keys() == wanted.keys()
    assert found["seen"] == wanted["seen"]
    for name in ("weights", "average", "critic"):
        if name in wanted:
            assert_same_state(found[name], wanted[name], name)
    for name in ("optimizer", "saved"):
        if name in wanted:
            assert_same_optimizer(found[name], wanted[name], name)
    for name in ("figures", "rates", "losses"):
        assert_near(torch.tensor(found[name]), torch.tensor(wanted[name]), name)
    assert found["epochs"] == wanted["epochs"]


def _hold_against_plain_python(loop: Loop, workers: int, folders: Folders) -> None:
    folder = folders.mktemp("whole")
    script = folder / "train.py"
    script.write_text(text_of(loop), encoding="utf-8")
    wanted = _alone(script)
    for ended in _in_whole_view(script, workers, folder / "run"):
        if loop.compares:
            _assert_as_alone(ended.result, wanted)


@examples(25)
@example(loop=loop_of(20), workers=2)
@given(loop=LOOPS, workers=WORKERS)
def test_whole_as_alone(tmp_path_factory: Folders, loop: Loop, workers: int) -> None:
    _hold_against_plain_python(loop, workers, tmp_path_factory)


@pytest.mark.slow
@pytest.mark.timeout(2400)
@examples(300)
@given(loop=LOOPS, workers=WORKERS)
def test_three_hundred_loops_whole(tmp_path_factory: Folders, loop: Loop, workers: int) -> None:
    _hold_against_plain_python(loop, workers, tmp_path_factory)
