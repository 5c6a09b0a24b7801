"""``--profile``: with a number or without one, and where it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_support import invoke

from phalanx.cli.invocation import Invocation


@pytest.mark.parametrize(
    ("typed", "parsed"),
    [
        ("run --profile train.py", "run --profile=20 train.py"),
        ("run train.py --profile", "run train.py --profile=20"),
        ("compare train.py --profile 5 --json", "compare train.py --profile 5 --json"),
        ("run train.py --profile=7 -- --profile", "run train.py --profile=7"),
        ("report --profile run-1", "report --profile run-1"),
    ],
)
def test_the_number_of_steps_may_be_left_out(typed: str, parsed: str) -> None:
    invocation = Invocation.read(typed.split())
    assert " ".join(invocation.ours) == parsed


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("run train.py --profile 201", "--profile must be at most 200, not 201"),
        ("run train.py --profile --launcher inprocess", "a profiler sees all its threads"),
        ("compare train.py --profile --simulate", "--simulate cannot be used with --profile"),
        ("run train.py --framework jax --profile", "--profile cannot look into jax"),
        ("run train.py --framework keras-tf --profile", "--profile cannot look into keras-tf"),
        ("compare train.py --systems phalanx,tf-ps --profile", "cannot look into tf-ps"),
    ],
)
def test_what_cannot_be_profiled_is_refused_in_one_line(
    words: str, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("import phalanx\nphalanx.join\n")
    assert invoke(words.split()) == 2
    told = capsys.readouterr().err.splitlines()
    assert why in told[0]
    assert len(told) == 2
