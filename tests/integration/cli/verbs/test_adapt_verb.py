"""``phalanx adapt`` from the command line: the diff, the file, and how the result trains."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from adapted_shapes import FUNCTION
from commands import last_json, phalanx
from safetensors.torch import load_file

pytestmark = pytest.mark.runs


def test_an_adapted_script_trains_the_same_with_one_worker_and_with_two(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(FUNCTION)
    shown = phalanx("adapt", "train.py", cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.startswith("--- train.py\n+++ train.py\n@@ ")
    assert "+    run = phalanx.join(model, optimizer)\n" in shown.stdout
    assert script.read_text() == FUNCTION
    written = phalanx("adapt", "train.py", "--write", "--json", cwd=tmp_path)
    assert written.returncode == 0, written.stderr
    assert last_json(written.stdout)["diff"] == shown.stdout
    assert (tmp_path / "train.py.orig").read_text() == FUNCTION
    weights = []
    for workers in ("1", "2"):
        ended = phalanx("run", "train.py", "--workers", workers, "--json", cwd=tmp_path)
        assert ended.returncode == 0, ended.stderr
        run = tmp_path / "runs" / last_json(ended.stdout)["run"]
        weights.append(load_file(run / "model.safetensors"))
    for key, alone in weights[0].items():
        torch.testing.assert_close(weights[1][key], alone, rtol=1e-5, atol=1e-5)
    again = phalanx("adapt", "train.py", cwd=tmp_path)
    assert again.returncode == 2
    assert "the script calls Phalanx itself" in again.stderr


def test_a_kept_file_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(FUNCTION)
    (tmp_path / "train.py.orig").write_text("kept")
    ended = phalanx("adapt", "train.py", "--write", cwd=tmp_path)
    assert ended.returncode == 2
    assert "train.py.orig exists already" in ended.stderr
    assert (tmp_path / "train.py").read_text() == FUNCTION
