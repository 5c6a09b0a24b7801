"""Weighs a worker's gradient by its samples in the present batch.

Workers compute what one process would. A loss is a mean over this worker's part of the global
batch, so its gradient counts in proportion to that part; a loss that is a sum simply adds up.
Batches that are accumulated before a step add up as well: dividing them is the script's own
business.

``.grad`` is not changed for that between ``backward`` and ``step``: gradients are multiplied where
they are copied out. Only when a batch has another scale than the one before, accumulated gradients
are converted. The loss scale of float16 is one more factor, so that gradients that are sent early
to other hosts have the scale of the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from phalanx.adapters.torch_models import parameters_of
from phalanx.core.errors import InputError
from phalanx.policies.sample_assignment import Lease
from phalanx.sync.state.gradients import get_grad, set_grad
from phalanx.train.engine.engine import Engine
from phalanx.train.step.grad_scaler import LossScale
from phalanx.train.step.loss_kind import Counted

NEXT_TO_NOTHING = 2.0**-40


class GradientWeight:
    """The scale and weight of the present gradients, for each optimizer."""

    def __init__(
        self,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        sums: bool = False,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        self._optimizers, self._sums = optimizers, sums
        self.averages = False
        """Whether a step takes the mean over the samples accumulated for it; else batches add up,
        as in torch."""
        self._batches = 0.0
        """Batches since the last step; a shorter one counts by its samples."""
        self.pending = 0
        """Batches since the last step, also those this worker had no part in."""
        self.agreed: set[int] = set()
        """Optimizers whose ``.grad`` all workers agreed on, with nothing added since."""
        self.loss_scale = LossScale(scaler, optimizers, self.agreed)
        self._scales = [1.0] * len(optimizers)
        self._weight = self._part = self._unit = 1.0
        self._counted: Counted | None = None
        """How the present batch counts, if not by its samples."""
        self._weighted = self._unknown = False
        """Whether a loss since the last step counted by weights, or by something unknown."""
        self._looks = 0
        """Losses of the present batch since its last step."""
        self._by_samples = list(self._scales), 1.0
        self._in_hand: tuple[Lease, int] | None = None

    def new_batch(self, lease: Lease, batch: int, engine: Engine) -> None:
        """Begin a batch, of ``batch`` samples over all workers unless it is a smaller last one."""
        self._in_hand = lease, batch
        waiting = self.pending and not self.averages
        if waiting and all(get_grad(p) is None for p in parameters_of(self._optimizers)):
            self.loss_scale.back_off()
            self._forget()  # the script dropped them without a step
            self.agreed.clear()
        if self._counted is not None and self.pending:
            self._count_by_samples()
        before = self._weight if self.pending and engine.apart else 0.0
        scale, self._weight = self._measure(lease, batch, engine)
        self._weight += before  # movements are averaged by all the samples behind them
        self._part, self._looks, self._counted = lease.part * engine.parties, 0, None
        self._unit = engine.parties / lease.whole
        self.pending += 1
        self._batches += lease.full
        if self.averages:
            scale *= lease.full
        for index, old in enumerate(self._scales):
            rescales = index not in self.agreed and scale != old
            self._scales[index] = self._rescale(index, old, scale) if rescales else scale
        self._by_samples = list(self._scales), self._weight

    def count_sums(self, engine: Engine) -> bool:
        """Count losses as sums, like the first loss; return whether the scales have changed."""
        if self._sums or self._in_hand is None:
            return False
        self._sums = True
        scale, self._weight = self._measure(*self._in_hand, engine)
        self._scales = [scale] * len(self._scales)
        self._by_samples = list(self._scales), self._weight
        return True

    def _measure(self, lease: Lease, batch: int, engine: Engine) -> tuple[float, float]:
        """Return the scale of the gradients, and the weight by whose sum the exchange divides."""
        together = engine.parties > 1
        if not self._sums:
            # Multiplied by the parties, so that equal parts need no multiplication at all.
            part = lease.part * engine.parties
            if together:
                return part, part
            return (1.0 if lease.samples else 0.0), (lease.share if engine.apart else 1.0)
        # A sum over fewer samples than a batch stands for the whole batch, as a mean does.
        stands_for = 1.0 if engine.lockstep else batch / lease.whole
        if together:
            return (stands_for if lease.samples else 0.0), lease.part
        if engine.apart:
            return (1.0 / lease.part if lease.samples else 0.0), lease.share
        return stands_for, 1.0

    def _rescale(self, index: int, before: float, scale: float) -> float:
        """Convert the accumulated gradients to a new scale, and return it."""
        gradients = [
            g for p in parameters_of([self._optimizers[index]]) if (g := get_grad(p)) is not None
        ]
        if not gradients:
            return scale
        # A scale of 0 would lose what was accumulated, so it becomes almost 0.
        scale = scale or NEXT_TO_NOTHING
        with torch.no_grad():
            torch._foreach_mul_(gradients, before / scale)
        return scale

    def count_as(self, counted: Counted | None) -> bool:
        """Count a loss of the present batch; ``None`` counts its samples. Return whether the scales
        have changed."""
        if counted is self._counted is None and self.pending == 1 and not self._looks:
            self._looks = 1  # the first loss of a step, which counts for its samples as expected
            return False
        before = self._scales
        self._count(counted)
        return self._scales is not before

    def _count(self, counted: Counted | None) -> None:
        if not self._looks:  # what another optimizer has stepped with does not count here
            self._count_by_samples()
        self._looks += 1
        if counted is not None and counted.selected:
            self._unknown = True
            return
        if self.pending > 1 or (self._looks > 1 and counted != self._counted):
            if (counted is None or counted.even) and not self._weighted:
                self._count_by_samples()  # even losses can count by samples, too
                return
            raise InputError(
                "the loss is a weighted mean, and several losses are accumulated for one step",
                'Use reduction="sum", divide by the batch size that run.batches is given (not by '
                'len(x)), and declare it: phalanx.join(model, optimizer, loss="sum").',
            )
        if counted is None or self._looks > 1:
            return
        self._counted, self._weighted = counted, not counted.even
        self._weight = counted.weight * self._unit if self._weight else 0.0
        full = self._batches if self.averages else 1.0
        self._scales = [self._weight * full] * len(self._scales)

    def _count_by_samples(self) -> None:
        """Count the batch by samples if it was counted by targets, equally many for each sample."""
        if self._counted is None or self._weighted:
            return
        scales, self._weight = self._by_samples
        self._scales, self._counted = list(scales), None

    def touched(self, index: int) -> None:
        """Note that a backward pass has added to gradients that were agreed on."""
        if index not in self.agreed and not self.loss_scale.unscaled:
            return
        scaled = self.loss_scale.scaler is not None
        if self._sums or scaled:
            what = "--precision float16" if scaled else "a loss that is a sum"
            raise InputError(
                "gradients were read, and another backward pass added to them before the step",
                f"With {what}, read or clip gradients after the last backward pass.",
            )
        self.agreed.discard(index)

    def of_step(
        self, index: int, wanted: float | None = None, *, taken: bool = True
    ) -> tuple[float, float]:
        """Return scale and weight of a step of optimizer ``index``; ``taken``: it is taken now."""
        if self._unknown and wanted is None and taken:
            raise InputError(
                "the loss is a mean over a selection of the batch, which may be of another size "
                "on another worker",
                "Give its weight, run.step(weight=how many were selected); for a cross "
                "entropy, ignore targets (-100) instead of leaving them out.",
            )
        scale, weight = (self._scales[index], self._weight) if wanted is None else (wanted, wanted)
        if self.loss_scale.scaler is not None:
            scale /= self.loss_scale.value
        if index in self.agreed:  # the same on all workers, so that they count once together
            scale = weight = self._part
        return (scale / self._batches if self.averages and self._batches else scale), weight

    @property
    def scales(self) -> list[float]:
        """Return the scale of every optimizer's gradients, as if its step came now."""
        if not self.averages and not self.agreed and self.loss_scale.scaler is None:
            return self._scales
        return [self.of_step(index, taken=False)[0] for index in range(len(self._scales))]

    def stepped(self, index: int) -> None:
        self._forget()
        self.agreed.discard(index)

    def _forget(self) -> None:
        self.pending, self._batches, self._looks = 0, 0.0, 0
        self._weighted = self._unknown = False
        if self.loss_scale.scaler is not None:
            self.loss_scale.forget()

    # -- checkpoints -------------------------------------------------------------------------

    def export_state(self) -> dict[str, Tensor]:
        """Return the gradients that wait for their step, and their weights."""
        if not self.pending:
            return {}
        scale = self.loss_scale.value  # a resumed run may have another loss scale, or none
        gradients = {
            f"pending.{i}": gradient.detach().cpu() / scale
            for i, p in enumerate(parameters_of(self._optimizers))
            if (gradient := get_grad(p)) is not None
        }
        counted = [self.pending, self._batches, self._weight, self._part, *self._scales]
        weighed = torch.tensor(counted, dtype=torch.float64)
        return {"pending": weighed, **gradients}

    def import_state(self, state: Mapping[str, Tensor]) -> None:
        if "pending" not in state:
            return
        pending, self._batches, self._weight, self._part, *self._scales = state["pending"].tolist()
        self.pending, self.loss_scale.scaled = int(pending), True
        scale = self.loss_scale.value
        for i, parameter in enumerate(parameters_of(self._optimizers)):
            if (gradient := state.get(f"pending.{i}")) is not None:
                set_grad(parameter, gradient.to(parameter.device) * scale)
