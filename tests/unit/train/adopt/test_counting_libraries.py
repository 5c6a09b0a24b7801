"""Libraries that take as many batches as a loader has are known by their modules."""

from __future__ import annotations

import pytest

from phalanx.train.adopt.libraries import counts_batches

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
    assert names["ask"](counts_batches) is counts  # type: ignore[operator]
