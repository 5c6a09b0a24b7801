"""Before several workers train: whether the parts of a batch make up the gradient of the batch.

The loss guard reads the graph of a loss, and no graph shows everything: samples that are compared
with one another, padding to the longest of a batch, hooks on gradients. So one worker tries it. A
child process of it goes through the script's own loop with some samples, with each of two parts of
them and with all of them again, and takes no step. If the same samples give the same gradient, then
its parts have to add up to it, as the workers' parts will. What cannot be tried (noise in the loop,
a script that does not step, a child that takes too long) is left to the loss guard.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.utils.data import DataLoader

from phalanx.core.errors import InputError
from phalanx.train.guards.loss_kind import LossWatch, SumLossError
from phalanx.train.proof.child import answer_of, become_child, ends_if_it_fails, fork

SECONDS = 20
"""That the child may take; the others wait for it."""
MOST_BATCHES, MOST_SAMPLES = 3, 32
MOST_PARAMETERS = 50_000_000
"""The child has about seven copies of them."""
_Seen = list[list[tuple[Tensor, float, bool]]]
"""Of each batch and each loss: the gradient, what it counts for, whether it is a sum."""
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
"""Of the gradient's norm."""


def rehearse(
    loader: DataLoader[Any], order: Tensor, batch: int, models: Sequence[nn.Module]
) -> Iterator[Any] | None:
    """In the child: batches for the script's loop. In the worker ``None``, if nothing is wrong."""
    batches = [part[:MOST_SAMPLES].tolist() for part in order.split(batch)[:MOST_BATCHES]]
    batches = [numbers for numbers in batches if len(numbers) > 1]
    if not batches or sum(p.numel() for m in models for p in m.parameters()) > MOST_PARAMETERS:
        return None
    reading, writing = os.pipe()
    child = fork()
    if child == 0:
        with ends_if_it_fails():
            os.close(reading)
            return _Rehearsal(loader, batches, models, writing)
    os.close(writing)
    off, adds_up = _answer_of(child, reading)
    if off is None:
        return None
    if adds_up:
        raise InputError(
            "the loss is a sum over the batch, so it depends on the number of workers",
            "Run with --loss sum, or divide the loss by the number of samples in the batch.",
        )
    raise InputError(
        f"the gradient of a batch differs by {off:.1%} from that of its parts: the loss depends on "
        "the batch as a whole, or on how it is put together (padding)",
        "Compute a loss per sample, and take the mean last; or accept the mean of the workers' "
        "parts: --loss mean.",
    )


def _answer_of(child: int | None, reading: int) -> tuple[float | None, bool]:
    told = answer_of(child, reading, SECONDS)
    off, adds_up = json.loads(told) if told else (None, False)
    return off, adds_up


class _Rehearsal(Iterator[Any]):
    def __init__(
        self,
        loader: DataLoader[Any],
        batches: list[list[int]],
        models: Sequence[nn.Module],
        answer: int,
    ) -> None:
        become_child(2 * SECONDS)
        self._answer, self._watch = answer, LossWatch()
        self._parameters = [p for model in models for p in model.parameters()]
        _make_repeatable(models, self._parameters)
        self._values = [p.detach().clone() for p in self._parameters]
        self._loader, self._left = loader, batches
        self._parts: list[list[Any]] = []
        """Of the batch that is tried: itself, two parts of it, and itself again."""
        self._seen: _Seen = []
        self._weights: list[tuple[int, int]] = []
        self._plain: Any = torch.autograd.backward
        setattr(torch.autograd, "backward", self._backward)  # noqa: B010

    def __next__(self) -> Any:
        if len(self._seen) == len(self._parts):
            off = _farthest(self._seen) if self._seen else None
            if off is not None or not self._left:
                self._end(off, off is not None and _farthest(_as_sums(self._seen)) is None)
            # Once: they may be random.
            samples = [self._loader.dataset[number] for number in self._left.pop(0)]
            middle = len(samples) // 2 - (len(samples) > 5)
            self._parts, self._seen = [samples, samples[:middle], samples[middle:], samples], []
        self._seen.append([])
        with torch.no_grad():
            for parameter, value in zip(self._parameters, self._values, strict=True):
                parameter.copy_(value)
        self._weights = self._state()
        return self._loader.collate_fn(self._parts[len(self._seen) - 1])

    def _backward(self, tensors: Any, *args: Any, **kwargs: Any) -> None:
        loss = tensors if isinstance(tensors, Tensor) else tensors[0]
        samples, is_sum = len(self._parts[len(self._seen) - 1]), False
        try:
            counted = self._watch.weight_of(loss, samples)
        except SumLossError as found:
            counted, is_sum = None, found.whole and found.over is None
            if not is_sum:
                self._end(None)
        except InputError:  # which the worker will say itself
            self._end(None)
        weight = counted.weight if counted is not None else float(samples)
        before, as_given = self._gradient(), self._state() == self._weights
        self._plain(tensors, *args, **kwargs)
        if as_given:  # not at weights that the script has changed by what it read of the gradient
            self._seen[-1].append((self._gradient() - before, weight, is_sum))

    def _state(self) -> list[tuple[int, int]]:
        return [(p._version, p.data_ptr()) for p in self._parameters]

    def _gradient(self) -> Tensor:
        found = (torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters)
        return torch.cat([gradient.flatten() for gradient in found])

    def _end(self, off: float | None, adds_up: bool = False) -> None:
        os.write(self._answer, json.dumps((off, adds_up)).encode())
        os._exit(0)


def _make_repeatable(models: Sequence[nn.Module], parameters: Sequence[nn.Parameter]) -> None:
    """Without dropout, with the statistics that batch norm has; in memory of its own."""
    for module in (module for model in models for module in model.modules()):
        if isinstance(module, _DropoutNd):
            module.p = 0.0
        if isinstance(module, _BatchNorm):
            module.eval()
    for parameter in parameters:
        parameter.data = parameter.data.clone()
        if parameter._post_accumulate_grad_hooks:
            parameter._post_accumulate_grad_hooks.clear()


def _farthest(seen: _Seen) -> float | None:
    """How far the gradient of a batch is from that of its parts; ``None``: near enough, or not
    known."""
    if not all(seen):
        return None
    if any(len(a) != len(b) for a, b in pairwise(seen)):  # a loss of each sample
        seen = [_together(losses) for losses in seen]
    worst = 0.0
    for whole, first, second, again in zip(*seen, strict=True):
        gradients = [gradient for gradient, _, _ in (whole, first, second, again)]
        scale = float(max(gradient.norm() for gradient in gradients))
        tolerance = _TOLERANCE.get(gradients[0].dtype)
        if tolerance is None or not 0.0 < scale < float("inf"):
            continue
        if float((gradients[3] - gradients[0]).norm()) > tolerance * scale:
            continue  # random
        a, b = (1.0, 1.0) if whole[2] else (first[1], second[1])
        made_up = (a * gradients[1] + b * gradients[2]) / (1.0 if whole[2] else a + b)
        off = float((made_up - gradients[0]).norm()) / scale
        worst = max(worst, off if off > tolerance else 0.0)
    return worst or None


def _as_sums(seen: _Seen) -> _Seen:
    return [[(gradient, weight, True) for gradient, weight, _ in losses] for losses in seen]


def _together(losses: list[tuple[Tensor, float, bool]]) -> list[tuple[Tensor, float, bool]]:
    gradients, weights, sums = zip(*losses, strict=True)
    return [(sum(gradients[1:], gradients[0]), weights[0], any(sums))]
