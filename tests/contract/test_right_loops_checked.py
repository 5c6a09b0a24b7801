"""The check against one process stops nothing that is right in view ``parts``.

Ordinary scripts of many kinds, each trained by two workers that are processes of their own, with
the check on: they end as plain Python does.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from adopted_runs import execute
from adopted_scripts import Loop, loop_of
from adopted_text import text_of
from devices import AWAY
from forked_workers import run_forked
from on_hosts import HOSTS
from plain_compare import assert_near, assert_same_state

from phalanx.core.script.weight_writes import may_write_weights

pytestmark = pytest.mark.skipif(AWAY or HOSTS > 1, reason="workers are forks of this process")
BLOCKS, OF_EACH = 10, 30
_OTHER_WITH_PARTS = ("root", "selected", "weighted mean")


def _is_right(loop: Loop) -> bool:
    """Whether workers that see parts can do what one process does."""
    if loop.loss == "class weights" and not loop.steps_each_batch:
        return False
    # What reads gradients that are sums, only to zero them, is not settled.
    zeroes_sums = loop.is_sum and (loop.zero == "filled" or loop.accumulate > 1)
    other = loop.loss in _OTHER_WITH_PARTS and not loop.adversarial
    return not (loop.dropout or zeroes_sums or other)


def _right_loops() -> Iterator[Loop]:
    return filter(_is_right, map(loop_of, itertools.count()))


CHECKED = "checked against one process"


def _said(loop: Loop, folder: Path) -> str:
    """What the run says, also of steps that were compared: a script may take none."""
    folder.mkdir()
    script = folder / "train.py"
    script.write_text(text_of(loop), encoding="utf-8")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            wanted = execute(script)
        except RuntimeError:  # clipping where nothing has a gradient yet, for example
            return CHECKED
        found = run_forked(
            script, 2, folder / "run", strategy="allreduce", view="parts", check=12,
            loss="sum" if loop.is_sum else None, private_weights=may_write_weights(script),
        )  # fmt: skip
    assert not found.error, f"{loop}\n{found.error}"
    for result in found.results:
        for name in ("weights", "average", "critic"):
            if name in wanted:
                assert_same_state(result[name], wanted[name], f"{loop}\n{name}")
        for name in ("figures", "rates"):
            assert_near(torch.tensor(result[name]), torch.tensor(wanted[name]), f"{loop}\n{name}")
    return found.said


def test_a_right_loop_is_checked_and_goes_on(tmp_path: Path) -> None:
    seeded = next(one for one in _right_loops() if one.loader == "seeded" and one.epochs == 3)
    adversarial = next(
        one for one in _right_loops() if one.adversarial and one.evaluates == "epoch"
    )
    assert CHECKED in _said(seeded, tmp_path / "seeded")
    assert CHECKED in _said(adversarial, tmp_path / "adversarial")


@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_three_hundred_right_loops(tmp_path: Path, block: int) -> None:
    loops = itertools.islice(_right_loops(), block * OF_EACH, (block + 1) * OF_EACH)
    checked = [CHECKED in _said(loop, tmp_path / str(n)) for n, loop in enumerate(loops)]
    assert sum(checked) > 0.9 * OF_EACH
