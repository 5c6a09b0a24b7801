"""View ``parts`` is checked against one process: what would train something else ends the run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from adopted_runs import execute
from commands import phalanx
from evaluated_inside import OWN, written
from planted_errors import PLANTED, RIGHT, Pieces, text_of

QUICK = ("hinge late", "stops by samples", "statistics by hand")
NOT_CHECKED = "not checked against one process: random numbers"


def _run(folder: Path, pieces: Pieces, *more: str) -> tuple[int, str]:
    (folder / "train.py").write_text(text_of(pieces))
    words = ("run", "train.py", "--workers", "2", "--view", "parts", *more)
    ended = phalanx(*words, cwd=folder)
    return ended.returncode, " ".join((ended.stdout + ended.stderr).split())


def _quick(names: dict[str, Pieces], quick: tuple[str, ...]) -> list[object]:
    return [n if n in quick else pytest.param(n, marks=pytest.mark.slow) for n in names]


@pytest.mark.parametrize("name", _quick(PLANTED, QUICK))
def test_a_planted_error_is_found(tmp_path: Path, name: str) -> None:
    code, said = _run(tmp_path, PLANTED[name])
    assert code == 2, said
    # A guard reads the graph of this loss, before the next check begins.
    # Where the first worker waits to write weights, its error is shown: a checkpoint that the other
    # one begins when the error ends its loop.
    others = {
        "dice late": "the loss is a sum over the batch",
        "decay by length": "the workers diverged",
    }
    assert others.get(name, "one process") in said, said


@pytest.mark.parametrize("name", _quick(RIGHT, ("penalty late",)))
def test_a_right_script_is_not_stopped(tmp_path: Path, name: str) -> None:
    code, said = _run(tmp_path, RIGHT[name])
    assert code == 0, said
    wanted = NOT_CHECKED if name == "noise" else "checked against one process: 12 steps"
    assert wanted in said, said


def test_a_check_that_fails_is_said(tmp_path: Path) -> None:
    ends = Pieces(
        setup="import os\nown = os.getpid()",
        batch="if os.getpid() != own:\n    os._exit(3)",
    )
    code, said = _run(tmp_path, ends)
    assert code == 0, said
    assert "none could go on alone" in said


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
    code, said = _run(tmp_path, PLANTED["statistics by hand"], *options)
    assert code == 0, said
    assert words in said and ("one process" in said) == bool(words)


def test_an_evaluation_inside_a_pass_with_a_generator_of_its_own(tmp_path: Path) -> None:
    script = written(tmp_path, OWN, "itself", "if step == 3: break")
    wanted = execute(script)
    script.write_text(script.read_text() + "torch.save(RESULT, 'ended.pt')\n")
    ended = phalanx("run", "train.py", "--workers", "2", "--view", "parts", cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    found = torch.load(tmp_path / "ended.pt")
    assert found["figures"] == pytest.approx(wanted["figures"], rel=1e-9)
    for name, value in wanted["weights"].items():
        torch.testing.assert_close(found["weights"][name], value, rtol=1e-9, atol=0)
