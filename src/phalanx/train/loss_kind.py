"""What a loss is over its batch, read from the graph that made it: a mean, a sum, a weighted mean.

A gradient counts by its samples, which is right for a mean over them. A sum over the batch, or a
mean over something else (class weights, tokens that are not ignored), would be wrong in silence.
"""

from __future__ import annotations

import functools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from phalanx.core.errors import InputError

LOOKS = 3
"""Losses of a training that are looked at whole; after that only at what differs by batch."""
MOST_NODES = 64
"""Looked at, from the loss downwards: what combines terms is there."""
_MEAN, _SUM = 1, 2
_COMBINES = ("AddBackward", "SubBackward", "MulBackward", "DivBackward", "NegBackward")
_SHAPES = (
    "ViewBackward",
    "ReshapeAliasBackward",
    "UnsafeViewBackward",
    "SqueezeBackward",
    "ToCopyBackward",
    "CloneBackward",
    "AliasBackward",
    "ExpandBackward",
)
_OF_PARAMETERS = ("AccumulateGrad", "PowBackward", "AbsBackward", "LinalgVectorNormBackward")


@dataclass
class LossKind:
    sums: list[str] = field(default_factory=list)
    """Operations that add up over the batch and are not divided by its samples."""
    weights: list[float] = field(default_factory=list)
    """For each weighted mean: the sum of its weights."""
    divided: int = 0
    """How many sums are divided by what happens to be the number of samples."""
    plain: int = 0
    """How many terms are plain means, or unknown."""


def inspect_loss(error: Tensor, samples: int, least: int = 2) -> LossKind:
    """The terms of ``error``, a loss over ``samples``; of fewer than ``least`` no sum tells."""
    found = LossKind()
    for node, divisors in _terms(error.grad_fn):
        name = _name(node)
        reduction = getattr(node, "_saved_reduction", None)
        if name.startswith("NllLoss") and reduction == _MEAN:
            _look_at_weights(node, samples, found)
        elif _adds_up(node, name, reduction, samples, least):
            if _is_mean(node, samples, divisors):
                found.divided += 1
            else:
                found.sums.append(name.removesuffix("0").removesuffix("Backward"))
        else:
            found.plain += 1
    return found


def _terms(root: Any) -> Iterator[tuple[Any, tuple[float, ...]]]:
    """The nodes under additions and scalings, and by what those divide them."""
    waiting: list[tuple[Any, tuple[float, ...]]] = [(root, ())]
    seen = 0
    while waiting and seen < MOST_NODES:
        node, divisors = waiting.pop()
        seen += 1
        if node is None:
            continue
        name = _name(node)
        if name.startswith(_COMBINES + _SHAPES):
            divisor = _divisor(node, name)
            below = divisors if divisor is None else (*divisors, divisor)
            waiting += [(child, below) for child, _ in node.next_functions]
        else:
            yield node, divisors


def _is_mean(node: Any, samples: int, divisors: Sequence[float]) -> bool:
    """Divided by the samples in hand, or by all numbers that were added up; dividing by a constant
    leaves it a sum."""
    sizes = getattr(node, "_saved_self_sym_sizes", ())
    counts = {samples, math.prod(sizes)} if sizes else {samples}  # of no sizes the product is 1
    return any(math.isclose(d, count, rel_tol=1e-6) for d in divisors for count in counts)


def _divisor(node: Any, name: str) -> float | None:
    """What a node divides by; ``None`` if it does not, or not by one number."""
    if not name.startswith(("MulBackward", "DivBackward")):
        return None
    other = getattr(node, "_saved_other", None)
    if other is None or (isinstance(other, Tensor) and other.numel() != 1):
        return None
    value = abs(float(other))
    if name.startswith("DivBackward"):
        return value
    return 1.0 / value if value else None


def _adds_up(node: Any, name: str, reduction: int | None, samples: int, least: int) -> bool:
    if reduction is not None:
        return reduction == _SUM
    if not name.startswith("SumBackward"):
        return False
    sizes = getattr(node, "_saved_self_sym_sizes", ())
    if not sizes or samples < least or sizes[0] != samples:
        return False
    child = node.next_functions[0][0] if node.next_functions else None
    return not _only_of_parameters(child)


def _only_of_parameters(node: Any) -> bool:
    """A penalty on weights: it has no samples, whatever its shape."""
    if node is None:
        return True
    name = _name(node)
    if name.startswith("AccumulateGrad"):
        return True
    if not name.startswith(_OF_PARAMETERS + _COMBINES):
        return False
    return all(_only_of_parameters(child) for child, _ in node.next_functions if child is not None)


def _look_at_weights(node: Any, samples: int, found: LossKind) -> None:
    target = node._saved_target
    total = float(node._saved_total_weight)
    if node._saved_weight is None and total == target.numel():
        found.plain += 1  # so much for each sample
    else:
        found.weights.append(total * samples / max(1, target.numel()))


def _name(node: Any) -> str:
    name: str = type(node).__name__
    return name


class LossWatch:
    """Looks at the losses of a training with several workers before they go backwards."""

    def __init__(self) -> None:
        self._looks = 0
        self._sizes: set[int] = set()
        """Of batches with a sum that was divided: one size alone does not tell by what."""

    def weight_of(self, error: Tensor, samples: int) -> float | None:
        """What the loss counts for, if not for its samples; refuses a sum."""
        if self._looks >= LOOKS and len(self._sizes) != 1:
            return _weight_at_the_top(error, samples)
        self._looks += 1
        found = inspect_loss(error, samples, least=1 if self._sizes else 2)
        if found.divided:
            self._sizes.add(samples)
        if found.sums:
            raise InputError(
                f"the loss is a sum over the batch ({found.sums[0]}), so it depends on how many "
                "workers there are",
                'Declare it: phalanx.join(model, optimizer, loss="sum"). Or divide it by the '
                "samples of the batch.",
            )
        if not found.weights:
            return None
        if len(found.weights) > 1 or found.plain or found.divided:
            raise InputError(
                "the loss is a weighted mean and something else, which count differently",
                'Make it a sum over the batch, and declare it: join(…, loss="sum").',
            )
        return found.weights[0]


def _weight_at_the_top(error: Tensor, samples: int) -> float | None:
    """Quickly: of a cross entropy, or of one that was divided or scaled."""
    node: Any = error.grad_fn
    name = _name(node)
    if name.startswith(("DivBackward", "MulBackward")):
        node = node.next_functions[0][0]
        name = _name(node)
    if not name.startswith("NllLoss") or node._saved_reduction != _MEAN:
        return None
    found = LossKind()
    _look_at_weights(node, samples, found)
    return found.weights[0] if found.weights else None


class _Current(threading.local):
    look: Callable[[Tensor], None] | None = None


_current = _Current()


def watch_backward(look: Callable[[Tensor], None] | None) -> None:
    """``look`` at each loss on which this thread calls ``loss.backward()``."""
    _current.look = look
    plain: Any = torch.Tensor.backward
    if look is None or hasattr(plain, "_phalanx_watches"):
        return

    @functools.wraps(plain)
    def backward(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if _current.look is not None:
            _current.look(self)
        return plain(self, *args, **kwargs)

    setattr(backward, "_phalanx_watches", True)  # noqa: B010
    setattr(torch.Tensor, "backward", backward)  # noqa: B010
