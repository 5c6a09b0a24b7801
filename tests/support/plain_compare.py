"""What two executions of a script ended with, compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def assert_near(found: Tensor, wanted: Tensor, what: str, tolerance: float = 1e-10) -> None:
    assert found.shape == wanted.shape, what
    gap = float((found.double() - wanted.double()).abs().max()) if found.numel() else 0.0
    scale = max(1.0, float(wanted.double().abs().max())) if found.numel() else 1.0
    assert gap <= tolerance * scale, f"{what}: {gap:.1e} apart"


def assert_same_state(found: dict[str, Tensor], wanted: dict[str, Tensor], what: str) -> None:
    assert list(found) == list(wanted), what
    for name, value in wanted.items():
        assert_near(found[name], value, f"{what}, {name}")


def assert_same_optimizer(found: dict[str, Any], wanted: dict[str, Any], what: str) -> None:
    """Options of all groups, and the state of each parameter; a slot of ``None`` is none."""
    assert _options(found) == _options(wanted), f"{what}, groups"
    one, other = _slots(found), _slots(wanted)
    assert one.keys() == other.keys(), f"{what}: {one.keys() ^ other.keys()}"
    for name, value in other.items():
        assert_near(one[name], value, f"{what}, {name}")


def _options(state: dict[str, Any]) -> list[dict[str, Any]]:
    groups = []
    for group in state["param_groups"]:
        rounded = {k: round(v, 12) for k, v in group.items() if isinstance(v, float)}
        if "betas" in group:  # as a scheduler leaves them
            rounded["betas"] = tuple(round(float(beta), 12) for beta in group["betas"])
        groups.append({**group, **rounded})
    return groups


def _slots(state: dict[str, Any]) -> dict[tuple[int, str], Tensor]:
    slots = {}
    for number, entries in state["state"].items():
        for name, value in entries.items():
            if value is not None:
                slots[number, name] = torch.as_tensor(value)
    return slots


def assert_small(state: dict[str, Tensor]) -> None:
    """Nothing but its own numbers is in the file."""
    for name, value in state.items():
        own = value.numel() * value.element_size()
        assert value.untyped_storage().nbytes() == own, f"{name} is saved with others"
