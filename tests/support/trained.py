"""What runs have trained, read from their folders."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor


def model_of(folder: Path) -> dict[str, Tensor]:
    """The final parameters of a run, which are numbers."""
    state = load_file(folder / "model.safetensors")
    assert state and all(bool(value.isfinite().all()) for value in state.values())
    return state


def assert_same_model(folder: Path, expected: Path, tolerance: float = 1e-5) -> None:
    found, wanted = model_of(folder), model_of(expected)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        difference = float((found[name] - value).abs().max())
        assert difference <= tolerance * max(1.0, float(value.abs().max())), f"{name} {difference}"
