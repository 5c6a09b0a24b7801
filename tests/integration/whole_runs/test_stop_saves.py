"""Ctrl-C ends a run with a checkpoint of where it was, or without one when that takes too long."""

from __future__ import annotations

from pathlib import Path

import pytest
from commands import interrupt, start, until

from phalanx.core.run_folder.run_paths import RunPaths
from phalanx.observe.events.timeline import read_ranks
from phalanx.train.checkpoint import checkpoint_index as shelf

LONG = """
import time, torch, phalanx
from pathlib import Path
model = torch.nn.Linear(8, 2)
x = torch.randn(400000, 8)
data = DATA
run = phalanx.join(model, torch.optim.SGD(model.parameters(), lr=0.1))
for epoch in run.epochs(2):
    for i, (part,) in enumerate(run.batches(data, batch=20)):
        run.backward(model(part).square().mean())
        run.step()
        if i == 20:
            Path(f"begun-{run.rank}").touch()
            ASLEEP
"""
PROCESSES = "torch.utils.data.DataLoader([(row,) for row in x], batch_size=20, num_workers=1)"


def _stopped(folder: Path, text: str, *words: str, workers: int, data: str = "(x,)") -> RunPaths:
    script = folder / "script.py"
    script.write_text(text.replace("DATA", data))
    process = start("run", str(script), "--workers", str(workers), *words, cwd=folder)
    until(lambda: len(list(folder.glob("begun-*"))) == workers)
    _, errors = interrupt(process)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    (run,) = (p for p in (folder / "runs").glob("[!.]*") if p.is_dir())
    paths = RunPaths(run)
    assert [log.finished.status for log in read_ranks(paths) if log.finished] == (
        ["stopped"] * workers
    )
    return paths


@pytest.mark.parametrize(
    ("workers", "strategy", "data"),
    [
        pytest.param(1, "allreduce", "(x,)", marks=pytest.mark.slow, id="alone"),
        pytest.param(2, "async", "(x,)", id="tensors"),
        pytest.param(2, "async", PROCESSES, id="processes"),
    ],
)
def test_a_stop_in_the_first_epoch_leaves_a_checkpoint(
    tmp_path: Path, workers: int, strategy: str, data: str
) -> None:
    text = LONG.replace("ASLEEP", "pass")
    paths = _stopped(tmp_path, text, "--strategy", strategy, workers=workers, data=data)
    _, manifest, _ = shelf.newest_valid(paths.checkpoints)
    assert manifest.epoch == 0
    assert 20 * 20 <= manifest.position < 400000


@pytest.mark.slow
def test_a_script_that_is_busy_with_itself_is_stopped_without_one(tmp_path: Path) -> None:
    paths = _stopped(tmp_path, LONG.replace("ASLEEP", "time.sleep(1000)"), workers=2)
    assert not shelf.numbers(paths.checkpoints)
