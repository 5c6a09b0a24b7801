"""The scripts in ``tests/keras_scripts``, in the shapes of well-known examples, on two workers."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import phalanx

SCRIPTS = Path(__file__).parents[2] / "keras_scripts"
LIMIT = 300.0
NEAR = 1e-4
OTHERWISE = {"augmentation_layers", "transfer_learning", "variational_autoencoder"}
"""Layers that draw random numbers draw others on each worker, and batch normalisation sees a part
of the batch: these end well, with another loss."""
REFUSED: dict[str, str] = {}
"""And with what words."""
FILES = {"callbacks_twice": ["checkpoint.model.keras"]}


def _variables() -> dict[str, str]:
    return {
        "KERAS_BACKEND": "torch", "KERAS_TORCH_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": "",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }  # fmt: skip


def _loss(output: str) -> float:
    """The first worker prints it; what the others print is in their logs."""
    (found,) = re.findall(r"final loss: (\S+)", output)
    return float(found)


def _plain(script: Path, folder: Path) -> float:
    folder.mkdir()
    ended = subprocess.run(
        [sys.executable, str(script)], cwd=folder, env={**os.environ, **_variables()},
        capture_output=True, text=True, timeout=LIMIT, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return _loss(ended.stdout)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(path.stem for path in SCRIPTS.glob("*.py")))
def test_a_script_as_others_write_it(tmp_path: Path, name: str) -> None:
    script = SCRIPTS / f"{name}.py"
    for module in ("keras", *(["tensorflow"] if name == "tf_data_pipeline" else [])):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    shared = tmp_path / "shared"
    shared.mkdir()
    ended = phalanx(
        "run", str(script), "--workers", "2", "--strategy", "allreduce",
        cwd=shared, limit=LIMIT, **_variables(),
    )  # fmt: skip
    if name in REFUSED:
        assert ended.returncode != 0 and "Traceback" not in ended.stderr
        assert REFUSED[name] in ended.stderr
        return
    assert ended.returncode == 0, ended.stderr
    found = _loss(ended.stdout + ended.stderr)
    wanted = _plain(script, tmp_path / "plain")
    if name in OTHERWISE:
        assert found == pytest.approx(wanted, rel=0.05)
    else:
        assert found == pytest.approx(wanted, abs=NEAR)
    files = sorted(path.name for path in shared.iterdir() if path.name != "runs")
    assert files == FILES.get(name, [])
