"""What a run says, and how it ends, when numbers are not finite."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import last_json, phalanx

SCRIPT = """
import torch, phalanx
from torch import nn
torch.manual_seed(0)
x = torch.randn(64, 4)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr={rate})
run = phalanx.join(model, optimizer)
for step, (part,) in enumerate(run.batches((x,), batch=8)):
    bad = float("nan") if step == 3 and run.rank == 1 else 1.0
    run.backward(model(part).mean() * bad)
    run.step()
"""
IN_PROCESS = ("--launcher", "inprocess")
"""One import of torch instead of two; the last case shows the same with processes."""


@pytest.mark.parametrize(
    ("rate", "words", "code", "line"),
    [
        (
            "0.1",
            IN_PROCESS,
            0,
            "Not finite: 1 step was skipped, in epoch 1 (the loss of worker 1).",
        ),
        pytest.param(
            "0.1",
            (*IN_PROCESS, "--check", "finite"),
            1,
            "a step was not finite, the last at step 4",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "3e38",
            (),
            1,
            "at the end of training the weights are not finite",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_it_is_said_and_decides_the_exit_code(
    tmp_path: Path, rate: str, words: tuple[str, ...], code: int, line: str
) -> None:
    """The last one leaves its loop before anybody could tell the script."""
    (tmp_path / "script.py").write_text(SCRIPT.format(rate=rate))
    ended = phalanx("run", "script.py", "--workers", "2", "--json", *words, cwd=tmp_path)
    assert ended.returncode == code, ended.stderr
    assert line in ended.stderr
    assert "Traceback" not in ended.stderr
    summary = last_json(ended.stdout)
    assert summary["status"] == ("failed" if code else "done")
    assert summary["nonfinite_steps"] == 1
    assert bool(list(tmp_path.glob("runs/*/model.safetensors"))) == (code == 0)
