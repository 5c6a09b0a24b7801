"""Compresses a worker's stream of gradients, with error feedback or without.

Error feedback (Seide et al. 2014, Karimireddy et al. 2019): what a message could not carry is
added to the next one, so that nothing is lost: the sum of everything decoded, plus the residual,
is the sum of all gradients.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from phalanx.sync.codec.codec import Codec, Payload, restore, working_dtype

_CODEC = "codec."


class Compressor:
    """Compresses one stream: a worker has a compressor for each flat buffer that it encodes.

    It keeps no residual: it is for codecs whose error has a mean of zero or is negligible.
    """

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def compress(self, flat: Tensor) -> Payload:
        """Return the message for ``flat``, and leave in it what the receivers decode."""
        payload = self._codec.encode(flat)
        self._codec.decode(payload, flat)
        return payload

    def export_state(self) -> dict[str, Tensor]:
        """Return the state that makes the next message exactly repeatable."""
        return {_CODEC + name: tensor for name, tensor in self._codec.export_state().items()}

    def import_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue from what another instance with the same options exported."""
        own = {k.removeprefix(_CODEC): t for k, t in state.items() if k.startswith(_CODEC)}
        self._codec.import_state(own)


class ErrorFeedback(Compressor):
    """Adds the residual to each gradient, and keeps it in float32 (float64 for float64).

    A residual that is not finite becomes zero, or one bad step would spoil all later ones.
    """

    def __init__(self, codec: Codec, size: int, dtype: torch.dtype) -> None:
        super().__init__(codec)
        self._residual = torch.zeros(size, dtype=working_dtype(dtype))

    def compress(self, flat: Tensor) -> Payload:
        # The residual is now all that should be sent; half types round it when it is copied.
        wish = self._residual.add_(flat)
        flat.copy_(wish)
        payload = super().compress(flat)
        self._residual.sub_(flat)
        if not bool(torch.isfinite(self._residual.sum())):
            self._residual.nan_to_num_(0.0, 0.0, 0.0)
        return payload

    def export_state(self) -> dict[str, Tensor]:
        return {"residual": self._residual.clone(), **super().export_state()}

    def import_state(self, state: Mapping[str, Tensor]) -> None:
        restore(state, "residual", self._residual)
        super().import_state(state)
