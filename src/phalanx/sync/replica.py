"""One worker's copy of what an optimizer trains: its parameters bound to flat buffers."""

from __future__ import annotations

import torch
from torch import Tensor

from phalanx.core.errors import InputError
from phalanx.sync.layout import Layout, by_dtype, make_layout, trainable


class Replica:
    """The parameters of one optimizer on this worker, laid out flat, one layout per dtype.

    Gradients are left where autograd puts them and copied out when they are exchanged: that
    costs one pass over them, tells used parameters from unused ones (``None``) for nothing, and
    works with whatever the script does to ``.grad``.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, shards: int) -> None:
        spaces = by_dtype(trainable(optimizer))
        self.optimizer = optimizer
        self.parameters = [[p for _, p in members] for members in spaces.values()]
        self.layouts: list[Layout] = [make_layout(m, shards) for m in spaces.values()]
        self.device = self.parameters[0][0].device

    def copy_out(self, flats: list[Tensor]) -> None:
        """Write the parameters' values into ``flats``."""
        for layout, parameters, flat in zip(self.layouts, self.parameters, flats, strict=True):
            for place, parameter in zip(layout.places, parameters, strict=True):
                place.view(flat).copy_(parameter.detach())

    def bind(self, flats: list[Tensor]) -> None:
        """Make the parameters views of ``flats``; their values become what lies there."""
        for layout, parameters, flat in zip(self.layouts, self.parameters, flats, strict=True):
            for place, parameter in zip(layout.places, parameters, strict=True):
                parameter.data = place.view(flat)

    def private_flats(self) -> list[Tensor]:
        """Flat buffers of this worker's own, on the parameters' device."""
        return [torch.empty(n.size, dtype=n.dtype, device=self.device) for n in self.layouts]

    def collect(self, flats: list[Tensor]) -> list[bytes | None]:
        """Copy the gradients into ``flats`` and drop them.

        Returns, per layout, ``None`` when every parameter has a gradient, else one byte per
        parameter that says whether it has.
        """
        return [
            self._collect(layout, parameters, flat)
            for layout, parameters, flat in zip(self.layouts, self.parameters, flats, strict=True)
        ]

    def _collect(self, layout: Layout, parameters: list[Tensor], flat: Tensor) -> bytes | None:
        targets, sources, used = [], [], bytearray(len(parameters))
        for i, parameter in enumerate(parameters):
            gradient = parameter.grad
            if gradient is None:
                flat[layout.places[i].start : layout.places[i].end].zero_()
                continue
            if gradient.layout != torch.strided:
                raise InputError(
                    "a gradient is sparse, which no strategy can exchange",
                    "Make the layer dense, for example nn.Embedding(…, sparse=False).",
                )
            used[i] = 1
            targets.append(layout.places[i].view(flat))
            sources.append(gradient)
            parameter.grad = None
        if targets:
            torch._foreach_copy_(targets, sources)
        return None if len(targets) == len(parameters) else bytes(used)
