"""The loop of a :class:`Script`: one for plain torch and for a run.

What differs is the *world* it runs in (``plain_worlds``).
"""

from __future__ import annotations

import copy
import io
import math
from dataclasses import dataclass, field
from typing import Any

import torch
from plain_scripts import At, Net, Outcome, Script
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


@dataclass
class Training:
    """One execution of a script, in one world."""

    script: Script
    model: Net
    optimizer: torch.optim.Optimizer
    world: Any
    """Plain torch, or a worker of a run: ``plain_worlds``."""
    scheduler: Any
    outcome: Outcome = field(default_factory=Outcome)

    def run(self) -> Outcome:
        script, model, last = self.script, self.model, torch.zeros(())
        self._scaler = (
            torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=3)
            if script.scaled != "no"
            else None
        )
        self._make_average()
        for epoch in self.world.epochs(script.epochs):
            if script.branch == "odd":
                model.with_branch = epoch % 2 == 1
            if epoch == script.frozen_again and model.branch is not None:
                self._freeze(model.branch)
            for number, batch in enumerate(self.world.batches()):
                last = self._batch(epoch, number, batch)
            self._after_epoch(last)
        self._end()
        return self.outcome

    def _batch(self, epoch: int, number: int, batch: Any) -> Tensor:
        script, at = self.script, (epoch, number)
        x, y = batch
        if at == script.late:
            self._release()
        if script.zero in ("top", "model") and number % script.accumulate == 0:
            self._zero()
        for part in range(script.losses):
            loss = self._loss(x, y, part)
            whole = loss / script.accumulate if script.divided else loss
            self.world.backward(whole if self._scaler is None else self._scaler.scale(whole))
        self.outcome.rates[at] = self._rates()
        steps = script.steps_at(number)
        if steps or script.clip_each:
            self._clip(at)
        if steps:
            self.world.step(0.5 if script.clip == "step" else None, self._scaler)
            if script.zero == "bottom":
                self._zero()
            self._update_average()
        if script.schedule in ("onecycle", "lambda") and (steps or script.per == "batch"):
            self.scheduler.step()
        if at in script.saves and (script.saver == "all" or self.world.is_first):
            self.outcome.saved[at] = self._saved()
        return loss.detach()

    def _loss(self, x: Tensor, y: Tensor, part: int) -> Tensor:
        outputs = self.model(x)
        each = (
            F.cross_entropy(outputs, y, reduction="none")
            if part == 0
            else 0.3 * outputs.pow(2).mean(dim=1)
        )
        if self.script.loss == "mean by hand":
            loss = each.sum() / len(y)
        elif self.script.loss == "sum by hand":
            loss = each.sum()
        elif part == 0:
            loss = F.cross_entropy(outputs, y, reduction=self.script.loss)
        else:
            loss = each.mean() if self.script.loss == "mean" else each.sum()
        if self.script.penalty:
            loss = loss + 0.01 * sum(
                p.pow(2).sum() for p in self.model.parameters() if p.requires_grad
            )
        return loss

    def _release(self) -> None:
        branch, rate = self.model.branch, 0.7 * self.optimizer.param_groups[0]["lr"]
        if self.script.branch in ("unfrozen", "added") and branch is not None:
            branch.requires_grad_(True)
        if self.script.branch == "added" and branch is not None:
            self.optimizer.add_param_group({"params": list(branch.parameters()), "lr": rate})

    def _freeze(self, block: nn.Module) -> None:
        block.requires_grad_(False)
        for parameter in block.parameters():
            parameter.grad = None

    def _zero(self) -> None:
        source: Any = self.model if self.script.zero == "model" else self.optimizer
        source.zero_grad(set_to_none=self.script.to_none)

    def _clip(self, at: At) -> None:
        kind = self.script.clip
        if kind in ("none", "step"):
            return
        if self._scaler is not None:
            self._scaler.unscale_(self.optimizer)
        if kind == "norm":
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), 0.4)
            self.outcome.norms[at] = float(norm)
            return
        if kind == "value":
            nn.utils.clip_grad_value_(self.model.parameters(), 0.05)
            return
        trained = [p for p in self.model.parameters() if p.grad is not None]
        whole = math.sqrt(sum(float(p.grad.pow(2).sum()) for p in trained))  # type: ignore[union-attr]
        self.outcome.norms[at] = whole
        factor = min(1.0, 0.4 / (whole + 1e-6))
        for parameter in trained if kind != "look" else ():
            assert parameter.grad is not None
            if kind == "own":
                parameter.grad.mul_(factor)
            else:
                parameter.grad = parameter.grad * factor

    def _after_epoch(self, last: Tensor) -> None:
        if self.script.schedule in ("step", "cosine"):
            self.scheduler.step()
        elif self.script.schedule == "plateau":
            self.scheduler.step(self.world.evaluate(F.cross_entropy))
        elif self.script.schedule == "own figure":
            self.scheduler.step(float(last))

    def _rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    # -- averages and files ------------------------------------------------------------------

    def _make_average(self) -> None:
        self._averaged: nn.Module | None = None
        if self.script.average == "averaged":
            follow = get_ema_multi_avg_fn(0.8)
            self._averaged = AveragedModel(self.model, multi_avg_fn=follow)
        elif self.script.average == "lerp":
            self._averaged = copy.deepcopy(self.model).requires_grad_(False)

    @torch.no_grad()
    def _update_average(self) -> None:
        if isinstance(self._averaged, AveragedModel):
            self._averaged.update_parameters(self.model)
        elif self._averaged is not None:
            pairs = zip(self._averaged.parameters(), self.model.parameters(), strict=True)
            for mean, parameter in pairs:
                mean.lerp_(parameter, 0.2)

    def _saved(self) -> dict[str, Any]:
        """As it is read back from a file."""
        file = io.BytesIO()
        states = {
            "model": self.model.state_dict(),
            "part": self.model.body.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }
        torch.save(states, file)
        file.seek(0)
        return torch.load(file)  # type: ignore[no-any-return]

    def _end(self) -> None:
        outcome = self.outcome
        outcome.weights = {k: v.clone() for k, v in self.model.state_dict().items()}
        outcome.optimizer = copy.deepcopy(self.optimizer.state_dict())
        outcome.last_rates = self._rates()
        if self._averaged is not None:
            outcome.average = copy.deepcopy(dict(self._averaged.state_dict()))
