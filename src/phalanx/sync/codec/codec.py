"""The interface of a codec, which turns a flat gradient into the buffers to send, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from phalanx.core.errors import InputError


@dataclass(frozen=True)
class Payload:
    """One message: exactly the buffers that have to be sent, contiguous and on the CPU."""

    tensors: tuple[Tensor, ...]

    @property
    def nbytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


@dataclass(frozen=True)
class Part:
    """``flat[start:end]`` is a part of a parameter whose rows have ``columns`` elements.

    ``offset`` is the position of its first element within a row. Vectors have one column.
    """

    start: int
    end: int
    columns: int = 1
    offset: int = 0


class Codec(Protocol):
    """``Codec(parts, seed, **options)``: one instance per stream, because some keep state.

    Streams that are summed need different seeds, so that their rounding is independent.
    """

    def encode(self, flat: Tensor) -> Payload:
        """Return ``flat``, of one dimension, any floating type and any length, as a message."""

    def decode(self, payload: Payload, out: Tensor) -> None:
        """Decode ``payload`` into ``out``, all of which is written."""

    def export_state(self) -> dict[str, Tensor]:
        """Return the state that makes the next message exactly repeatable."""

    def import_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what another instance with the same options exported."""


class Stateless:
    """A base for codecs that keep nothing from one message to the next."""

    def export_state(self) -> dict[str, Tensor]:
        return {}

    def import_state(self, state: Mapping[str, Tensor]) -> None:
        """Do nothing: this codec keeps no state."""


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type to compute in: float64 for float64, else float32, also for half types."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def make_generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed % (1 << 63))


def restore(state: Mapping[str, Tensor], name: str, into: Tensor) -> None:
    """Copy ``state[name]`` over ``into``; refuse a state of another layout."""
    saved = state.get(name)
    if saved is None or saved.shape != into.shape:
        found = "is missing" if saved is None else f"has the shape {tuple(saved.shape)}"
        raise InputError(
            f"the saved codec state does not fit: '{name}' {found}, not {tuple(into.shape)}",
            "Resume with the same model, codec and number of workers, or without codec state.",
        )
    into.copy_(saved)
