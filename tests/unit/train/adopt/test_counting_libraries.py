"""Loops that decide themselves how many batches they take, by their source or their library."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from phalanx.train.adopt.script_length import needs_equal_batches

ASKS = "import sys\ndef ask(counts):\n    return counts(sys._getframe())\n"


@pytest.mark.parametrize(
    ("module", "counts"),
    [
        ("transformers.trainer", True),
        ("lightning.pytorch.loops.fit_loop", True),
        ("pytorch_lightning.loops.fit_loop", True),
        ("train", False),
        ("lightning.fabric.fabric", False),
    ],
)
def test_known_by_its_module(module: str, counts: bool) -> None:
    names: dict[str, object] = {"__name__": module}
    exec(ASKS, names)
    assert names["ask"](needs_equal_batches) is counts  # type: ignore[operator]


LOADER = """
import sys
from phalanx.train.adopt.script_length import needs_equal_batches

class Loader:
    def __iter__(self):
        self.found = needs_equal_batches(sys._getframe())
        return iter(range(3))

def watched(batches):
    for batch in batches:
        yield batch

loader = Loader()
"""


@pytest.mark.parametrize(
    ("loop", "leaves"),
    [
        ("for i in loader:\n    if i: break", True),
        ("for i, x in enumerate(loader):\n    try:\n        if i: break\n    finally: pass", True),
        ("for i, x in zip(range(9), watched(loader)):\n    if i: break", True),
        ("def epoch():\n    for i in loader:\n        while i: return\nepoch()", True),
        ("for i in loader:\n    pass", False),
        ("for i in loader:\n    for k in (1, 2):\n        break", False),
        ("for i in loader:\n    def closure():\n        return i", False),
        ("for epoch in range(2):\n    for i in loader: pass\n    break", False),
        ("found = list(loader)", False),
    ],
)
def test_loops_that_may_end_early_are_seen(tmp_path: Path, loop: str, leaves: bool) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOADER + loop)
    assert runpy.run_path(str(script))["loader"].found is leaves
