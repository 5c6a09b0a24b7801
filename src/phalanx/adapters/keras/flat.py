"""Variables end to end, as one row of numbers: one array in, one out, however many there are."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.core.errors import InputError


class VariableRow:
    """Where each of the variables is."""

    def __init__(self, variables: Sequence[Any]) -> None:
        kinds = {variable.dtype for variable in variables}
        if len(kinds) != 1:
            raise InputError(
                f"the model's trainable variables are of {len(kinds)} types: "
                f"{', '.join(sorted(kinds))}",
                "Give all layers the same variable dtype.",
            )
        self.shapes = [tuple(int(size) for size in variable.shape) for variable in variables]
        self._sizes = [prod(shape) for shape in self.shapes]
        self.spans = list(pairwise(accumulate(self._sizes, initial=0)))

    def join(self, parameters: Sequence[nn.Parameter]) -> Tensor:
        """A copy: frameworks may go on using its memory."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in parameters])

    def split(self, flat: Any) -> list[Any]:
        """An array of a framework, as its variables."""
        spans = zip(self.spans, self.shapes, strict=True)
        return [flat[start:end].reshape(shape) for (start, end), shape in spans]

    def give(self, flat: Tensor, used: Sequence[int], parameters: Sequence[nn.Parameter]) -> None:
        """Gives the gradients of a row to the variables that are ``used``."""
        for parameter in parameters:
            parameter.grad = None
        parts = flat.split([self._sizes[i] for i in used])
        for i, part in zip(used, parts, strict=True):
            parameters[i].grad = part.view(self.shapes[i])
