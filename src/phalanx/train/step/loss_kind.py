"""Finds what a loss is over its batch (a mean, a sum, a weighted mean), from its graph.

A gradient counts by its samples, which is right for a mean over samples. A sum over the batch, or a
mean over something else (class weights, tokens that are not ignored), would silently be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import Tensor

from phalanx.core.errors import InputError
from phalanx.train.engine.engine import Engine

MOST_NODES = 64
"""The most nodes to look at, from the loss down: the first ones combine its terms."""
_MEAN, _SUM = 1, 2
_COMBINES = tuple(f"{name}Backward" for name in ("Add", "Sub", "Rsub", "Mul", "Div", "Neg"))
_BENDS = ("SqrtBackward", "RsqrtBackward", "PowBackward", "ExpBackward", "LogBackward")
"""Operations after which means over parts of a batch do not add up to that of the batch."""
_SHAPES = (
    "ViewBackward", "ReshapeAliasBackward", "UnsafeViewBackward", "SqueezeBackward",
    "ToCopyBackward", "CloneBackward", "AliasBackward", "ExpandBackward",
)  # fmt: skip
_PICKS = ("IndexBackward", "MaskedSelectBackward", "IndexSelectBackward")
_OF_NORMS = ("SumBackward", "MeanBackward", "StackBackward", "SelectBackward", *_BENDS)
_OF_PARAMETERS = ("AccumulateGrad", "PowBackward", "AbsBackward", "LinalgVectorNormBackward")


@dataclass
class LossKind:
    sums: list[str] = field(default_factory=list)
    """Operations that add up over the batch and are not divided by its samples."""
    over: float | None = None
    """The divisor of such a sum; the graph does not show whether it depends on the batch."""
    weights: list[float] = field(default_factory=list)
    """The sum of the weights of each weighted mean."""
    divided: int = 0
    """How many sums are divided by what happens to be the number of samples."""
    even: list[float] = field(default_factory=list)
    """The number of targets of each mean over equally many targets per sample, such as tokens. The
    same loss may be weighted on another worker, so all workers count it by targets."""
    bends: list[str] = field(default_factory=list)
    """Functions of the whole batch's loss that are not linear."""
    selected: int | None = None
    """The number of values of a mean over a selection of the batch."""
    plain: int = 0
    """How many terms are plain means, or unknown."""


def inspect_loss(error: Tensor, samples: int, least: int = 2) -> LossKind:
    """Find the terms of ``error``, a loss over ``samples``; below ``least`` no sums are found."""
    found = LossKind()
    for node, divisors in _terms(error.grad_fn):
        name = _name(node)
        reduction = getattr(node, "_saved_reduction", None)
        if name.startswith("NllLoss") and (
            reduction == _MEAN or _divide_by(float(node._saved_total_weight), divisors)
        ):  # a mean over targets, or a sum divided by their weights
            # Count targets, whose number per sample may differ between workers (padding does).
            targets, total = node._saved_target.numel(), float(node._saved_total_weight)
            found.selected = targets if targets % samples else found.selected
            if node._saved_weight is not None or total != targets:
                found.weights.append(total)
            elif targets == samples:
                found.plain += 1
            else:
                found.even.append(total)
        elif _adds_up(node, name, reduction, samples, 1 if _divide(divisors) else least):
            if _is_mean(node, samples, divisors):
                found.divided += 1
            else:
                found.sums.append(name.removesuffix("0").removesuffix("Backward"))
                found.over = found.over or _divide(divisors)
        elif _is_quotient(node, name) or (
            name.startswith(_BENDS) and not _only_of_parameters(node, _OF_NORMS)
        ):
            found.bends.append(name.removesuffix("0").removesuffix("Backward"))
        else:
            found.plain += 1
            found.selected = found.selected or _selected(node, name, samples)
    return found


def _is_quotient(node: Any, name: str) -> bool:
    """Whether a node divides by something that also depends on the batch."""
    if not name.startswith("DivBackward") or len(node.next_functions) < 2:
        return False
    return not _only_of_parameters(node.next_functions[1][0], _OF_NORMS)


def _selected(node: Any, name: str, samples: int) -> int | None:
    """Return how many values a mean is over, if the script picked them (``loss[mask]``)."""
    if name.startswith("MeanBackward0"):
        sizes = tuple(getattr(node, "_saved_self_sym_sizes", ()))
    elif getattr(node, "_saved_reduction", None) == _MEAN and hasattr(node, "_saved_self"):
        sizes = tuple(node._saved_self.shape)
    else:
        return None
    if not sizes or samples in sizes or sizes[0] % samples == 0 or not _picks(node):
        return None
    return int(sizes[0])


def _picks(node: Any) -> bool:
    """Whether there is a selection a few operations below ``node``."""
    waiting, seen = [node], 0
    while waiting and seen < MOST_NODES:
        below = waiting.pop(0)
        seen += 1
        if _name(below).startswith(_PICKS):
            return True
        waiting += [child for child, _ in below.next_functions if child is not None]
    return False


class _Divisor(NamedTuple):
    value: float
    is_division: bool
    """Whether it divides; a factor below 1 hardly ever depends on the batch."""


_Divisors = tuple[_Divisor, ...]


def _terms(root: Any) -> Iterator[tuple[Any, _Divisors]]:
    """Yield the nodes below additions and scalings, each with the divisors above it."""
    waiting: list[tuple[Any, _Divisors]] = [(root, ())]
    seen = 0
    while waiting and seen < MOST_NODES:
        node, divisors = waiting.pop()
        seen += 1
        if node is None:
            continue
        name = _name(node)
        passes = name.startswith(_COMBINES + _SHAPES) or _is_of_one_number(node, name)
        if passes and not _is_quotient(node, name):
            divisor = _divisor(node, name)
            below = divisors if divisor is None else (*divisors, divisor)
            waiting += [(child, below) for child, _ in node.next_functions]
        else:
            yield node, divisors


def _is_of_one_number(node: Any, name: str) -> bool:
    """Whether ``node`` is the mean or sum of one number, so that the node below it counts."""
    reduces = name.startswith(("MeanBackward", "SumBackward"))
    return reduces and tuple(getattr(node, "_saved_self_sym_sizes", (0,))) == ()


def _is_mean(node: Any, samples: int, divisors: _Divisors) -> bool:
    """Whether a sum is divided by the number of samples, or by that of the summed numbers."""
    sizes = getattr(node, "_saved_self_sym_sizes", ()) or (samples,)  # the product of none is 1
    return _divide_by(samples, divisors) or _divide_by(math.prod(sizes), divisors)


def _divide_by(count: float, divisors: _Divisors) -> bool:
    return any(math.isclose(divisor.value, count, rel_tol=1e-6) for divisor in divisors)


def _divide(divisors: _Divisors) -> float | None:
    return next((divisor.value for divisor in divisors if divisor.is_division), None)


def _divisor(node: Any, name: str) -> _Divisor | None:
    """Return what a node divides by; ``None`` if it does not, or not by one number."""
    if not name.startswith(("MulBackward", "DivBackward")):
        return None
    other = getattr(node, "_saved_other", None)
    if other is None or (isinstance(other, Tensor) and other.numel() != 1):
        return None
    value = abs(float(other))
    if name.startswith("DivBackward"):
        return _Divisor(value, is_division=True)
    return _Divisor(1.0 / value, is_division=False) if value else None


def _adds_up(node: Any, name: str, reduction: int | None, samples: int, least: int) -> bool:
    if reduction is not None:
        return reduction == _SUM
    if not name.startswith("SumBackward"):
        return False
    sizes = getattr(node, "_saved_self_sym_sizes", ())
    if not sizes or samples < least or sizes[0] != samples:
        return False
    child = node.next_functions[0][0] if node.next_functions else None
    return not _only_of_parameters(child, _OF_NORMS)


def _only_of_parameters(node: Any, more: tuple[str, ...] = ()) -> bool:
    """Whether ``node`` depends on parameters only, as a penalty on weights does."""
    if node is None:
        return True
    name = _name(node)
    if name.startswith("AccumulateGrad"):
        return True
    if not name.startswith(_OF_PARAMETERS + _COMBINES + _SHAPES + more):
        return False
    below = [child for child, _ in node.next_functions if child is not None]
    return all(_only_of_parameters(child, more) for child in below)


def _name(node: Any) -> str:
    return str(type(node).__name__)


@dataclass(frozen=True)
class Counted:
    """The weight of a loss that does not count by its samples."""

    weight: float
    even: bool = False
    """Whether every sample has the same weight."""
    selected: bool = False
    """Whether the loss is a mean over a selection of the batch."""


class SumLossError(InputError):
    """A loss adds up over the batch, where a mean was expected."""

    def __init__(self, what: str, *, whole: bool, over: float | None = None) -> None:
        super().__init__(
            f"the loss is a sum over the batch ({what}), so it depends on how many workers there "
            "are",
            'Declare it: phalanx.join(model, optimizer, loss="sum"), or --loss sum where the '
            "script does not call Phalanx. Or divide it by the samples of the batch.",
        )
        self.whole = whole
        """Whether all of its terms are sums."""
        self.over = over


class LossWatch:
    """Looks at the losses of a training with several workers before they go backwards."""

    def __init__(self, *, sums: bool = False, parts: bool = False) -> None:
        self.sums = sums
        """Whether losses are sums over the batch, not means."""
        self._divided = False
        """Whether a sum was divided by the samples; then a single sample shows a sum, too."""
        self._parts = parts
        """Whether a loss may be a function of this worker's whole part of the batch."""

    def looks(self, workers: int) -> bool:
        """Whether the next loss has to be looked at."""
        return workers > 1 and not self.sums

    def check(self) -> None:
        """Check, after a step, that all workers found the same kind of loss."""

    def weight_of(self, error: Tensor, samples: int) -> Counted | None:
        """Return the weight of the loss, if it does not count by its samples; refuse a sum."""
        if _is_plain_mean(error.grad_fn, samples):
            return None
        found = inspect_loss(error, samples, least=1 if self._divided else 2)
        self._divided = self._divided or found.divided > 0
        if found.sums:
            others = found.weights or found.divided or found.even or found.bends or found.plain
            raise SumLossError(found.sums[0], whole=not others, over=found.over)
        if found.bends and not self._parts:
            raise InputError(
                f"the loss is a function of the whole batch ({found.bends[0]}), which "
                "cannot be computed from parts of it",
                "Compute a value per sample and take the mean last; if a square root follows "
                "the mean, leave it out.",
            )
        if found.selected is not None:
            return Counted(float(found.selected), selected=True)
        if found.weights and (len(found.weights) > 1 or found.plain or found.divided or found.even):
            raise InputError(
                "the loss adds a weighted mean to another term, and the two need different weights",
                'Make it a sum over the batch, and declare it: join(…, loss="sum").',
            )
        if found.weights:
            return Counted(found.weights[0])
        alone = len(found.even) == 1 and not found.plain and not found.divided
        return Counted(found.even[0], even=True) if alone else None


class AdoptedLoss(LossWatch):
    """Finds by the first loss whether an adopted script's losses are means or sums over the batch;
    a script that joins declares it. All losses must be of that kind, on all workers: a worker with
    a single sample may not be able to tell."""

    def __init__(self, engine: Engine, kinds: Tensor) -> None:
        """Take ``kinds``: what each worker has found, in memory that all share."""
        super().__init__(parts=engine.workers == 1)
        self._alone, self._rank = engine.workers == 1, engine.rank
        self._kinds, self._settled = kinds.numpy(), False
        self._kind = 0

    def looks(self, workers: int) -> bool:
        return workers > 1 or not self._kind

    def weight_of(self, error: Tensor, samples: int) -> Counted | None:
        try:
            counted = super().weight_of(error, samples)
        except SumLossError as found:
            if not found.whole or self._kind == _MEAN:
                raise
            if found.over is not None and not self._alone:
                raise InputError(
                    f"the loss is a sum divided by {found.over:g}, and it cannot be seen whether "
                    "that number depends on the batch",
                    "Say which it is: --loss mean if it grows with the samples of the batch, "
                    "--loss sum if it is a constant.",
                ) from None
            self._note(_SUM)
            return None
        except InputError:
            if not self._alone:  # one worker computes any kind correctly
                raise
            counted = None
        if self.sums and samples > 1:
            raise InputError(
                "the script's losses are partly sums and partly means over the batch",
                "Make all of them means, or all of them sums.",
            )
        if not self._kind:
            self._note(_MEAN)
        return counted

    def _note(self, kind: int) -> None:
        self._kind = self._kinds[self._rank] = kind
        self.sums = kind == _SUM

    def check(self) -> None:
        if self._settled:
            return
        found = set(self._kinds.tolist())
        self._settled = 0 not in found
        if {_MEAN, _SUM} <= found:
            raise InputError(
                "the workers do not agree whether the loss is a mean or a sum over the batch",
                "Say which it is: --loss mean or --loss sum.",
            )


def _is_plain_mean(node: Any, samples: int) -> bool:
    """Whether ``node`` is the most frequent loss: a cross entropy that counts each sample once."""
    return (
        type(node).__name__ == "NllLossBackward0"
        and node._saved_reduction == _MEAN
        and node._saved_weight is None
        and float(node._saved_total_weight) == samples == node._saved_target.numel()
    )
