"""View ``parts`` is checked against one process: what would train something else ends the run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from commands import phalanx
from whole_scripts import WholeScript, text_of

PLAIN = WholeScript(0, "mlp", "plain", "plain", "plain", "momentum", (), (), 20, 96, 8)
WRONG: dict[str, list[Any]] = {
    "model": ["mixes mean", "mixes attention", "mixes by flag"],
    "batches": ["normalised"],
    "loss": ["warm", "hard late", "dice", "contrastive", "normalised", "averaged", "bank", "rows",
             "length"],
    "step": ["hook rarely", "summed"],
    "after": [("rate by samples",), ("stop by samples",), ("cleared",), ("decay by length",)],
}  # fmt: skip
"""Pieces of scripts that train something else where each worker sees its part of a batch."""
RIGHT: dict[str, list[Any]] = {
    "loss": ["l1"], "step": ["clipped", "sharpness"], "model": ["noise"],
}  # fmt: skip
"""And some that do not; ``test_right_loops_checked`` has hundreds."""
QUICK = ("warm", "mixes mean", ("stop by samples",), "l1")
SAID = ("one process", "function of the whole batch", "a sum over the batch", "diverged")
"""A guard may read the graph of a loss before the next check begins."""


def _pieces(named: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param({field: one}, marks=() if one in QUICK else pytest.mark.slow, id=str(one))
        for field, pieces in named.items()
        for one in pieces
    ]


def _run(
    folder: Path, script: WholeScript, *more: str, begins: str = "sleep(0.004)"
) -> tuple[int, str]:
    """What comes late comes after the first checks, and they have time between the steps."""
    text = text_of(script).replace("state['step'] >= 5", "state['step'] > 30")
    text = text.replace("2 * COUNT + 3", "80")
    text = text.replace("in loader:\n", f"in loader:\n        {begins}\n", 1)
    (folder / "train.py").write_text(
        f"import os\nfrom time import sleep\n\nOWN = os.getpid()\n{text}"
    )
    words = ("run", "train.py", "--workers", "2", "--view", "parts", *more)
    ended = phalanx(*words, cwd=folder)
    return ended.returncode, " ".join((ended.stdout + ended.stderr).split())


@pytest.mark.parametrize("piece", _pieces(WRONG))
def test_a_planted_error_is_found(tmp_path: Path, piece: dict[str, Any]) -> None:
    code, said = _run(tmp_path, replace(PLAIN, **piece))
    assert code == 2, said
    assert any(words in said for words in SAID), said


@pytest.mark.parametrize("piece", _pieces(RIGHT))
def test_a_right_script_is_not_stopped(tmp_path: Path, piece: dict[str, Any]) -> None:
    code, said = _run(tmp_path, replace(PLAIN, **piece))
    assert code == 0, said
    unchecked = "model" in piece
    words = "not checked against one process: random numbers" if unchecked else "process: 12 steps"
    assert words in said, said


def test_a_check_that_fails_is_said(tmp_path: Path) -> None:
    code, said = _run(tmp_path, PLAIN, begins="os.getpid() == OWN or os._exit(3)")
    assert code == 0, said
    assert "no child could train alone" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        pytest.param(("--check", "off"), "", marks=pytest.mark.slow),
        (("--strategy", "async"), "not checked against one process: under async"),
    ],
)
def test_nothing_is_checked_if_that_was_asked_for(
    tmp_path: Path, options: tuple[str, str], words: str
) -> None:
    code, said = _run(tmp_path, replace(PLAIN, model="mixes mean"), *options)
    assert code == 0, said
    assert words in said and ("one process" in said) == bool(words)
