"""Keras' optimizers as element-wise torch optimizers, so that they can update a shard.

Keras and torch mean different things by the same name: Keras' momentum includes the learning rate,
and its Adam adds epsilon at another place. Slots have the names that Keras gives its variables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

Options = Mapping[str, Any]
State = dict[str, Tensor]


class KerasRule(torch.optim.Optimizer):
    """Clip, decay the weights, then the rule of the subclass; in this order, as Keras does."""

    options: ClassVar[dict[str, Any]] = {}
    slots: ClassVar[tuple[str, ...]] = ()
    counts: ClassVar[bool] = False
    """Whether the rule depends on the number of the step."""

    def __init__(self, params: Iterable[Any], **options: Any) -> None:
        common = {"lr": 0.001, "weight_decay": 0.0, "clipvalue": 0.0, "clipnorm": 0.0}
        super().__init__(params, {**common, **self.options, **options})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, parameter.grad, group)

    def _step_one(self, parameter: Tensor, gradient: Tensor, group: Options) -> None:
        state = self.state[parameter]
        if not state:
            state.update(self._first_state(parameter, group))
        if self.counts:
            state["step"] += 1
        if group["clipvalue"]:
            gradient = gradient.clamp(-group["clipvalue"], group["clipvalue"])
        if group["clipnorm"]:
            norm = float(torch.linalg.vector_norm(gradient))
            gradient = gradient * (group["clipnorm"] / max(norm, group["clipnorm"]))
        if group["weight_decay"]:
            parameter.mul_(1.0 - group["lr"] * group["weight_decay"])
        self.update(parameter, gradient, state, group)

    def _first_state(self, parameter: Tensor, group: Options) -> State:
        first = group.get("initial_accumulator_value", 0.0)
        state = {
            name: torch.full_like(parameter, first if name == "accumulator" else 0.0)
            for name in self.used_slots(group)
        }
        if self.counts:
            state["step"] = torch.zeros((), dtype=torch.float32)
        return state

    def used_slots(self, group: Options) -> tuple[str, ...]:
        return self.slots

    def update(self, p: Tensor, g: Tensor, state: State, o: Options) -> None:
        raise NotImplementedError


class KerasSGD(KerasRule):
    options: ClassVar = {"momentum": 0.0, "nesterov": False}

    def used_slots(self, group: Options) -> tuple[str, ...]:
        return ("momentum",) if group["momentum"] else ()

    def update(self, p: Tensor, g: Tensor, state: State, o: Options) -> None:
        if not o["momentum"]:
            p.add_(g, alpha=-o["lr"])
            return
        moved = state["momentum"].mul_(o["momentum"]).add_(g, alpha=-o["lr"])
        if o["nesterov"]:
            p.add_(moved, alpha=o["momentum"]).add_(g, alpha=-o["lr"])
        else:
            p.add_(moved)


def _base(o: Options, beta: str) -> float:
    """Return the base of the powers that correct the bias: TensorFlow has the beta in float32."""
    return float(np.float32(o[beta])) if o.get("float32_powers") else float(o[beta])


class KerasAdam(KerasRule):
    """Kingma and Ba, "Adam: a method for stochastic optimization", 2015."""

    options: ClassVar = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7, "amsgrad": False}
    counts = True

    def used_slots(self, group: Options) -> tuple[str, ...]:
        return ("momentum", "velocity", *(("velocity_hat",) if group["amsgrad"] else ()))

    def update(self, p: Tensor, g: Tensor, state: State, o: Options) -> None:
        step, momentum, velocity = float(state["step"]), state["momentum"], state["velocity"]
        first, second = (1.0 - _base(o, beta) ** step for beta in ("beta_1", "beta_2"))
        rate = o["lr"] * second**0.5 / first
        momentum.lerp_(g, 1.0 - o["beta_1"])
        velocity.mul_(o["beta_2"]).addcmul_(g, g, value=1.0 - o["beta_2"])
        if o["amsgrad"]:
            velocity = torch.maximum(state["velocity_hat"], velocity, out=state["velocity_hat"])
        p.addcdiv_(momentum, velocity.sqrt().add_(o["epsilon"]), value=-rate)


class KerasNadam(KerasRule):
    """Dozat, "Incorporating Nesterov momentum into Adam", 2016."""

    options: ClassVar = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}
    slots = ("momentum", "velocity")
    counts = True

    def update(self, p: Tensor, g: Tensor, state: State, o: Options) -> None:
        step, momentum, velocity = int(state["step"]), state["momentum"], state["velocity"]
        now, after = (_nadam_part(o["beta_1"], t) for t in (step, step + 1))
        product = nadam_product(o["beta_1"], step)
        momentum.lerp_(g, 1.0 - o["beta_1"])
        velocity.mul_(o["beta_2"]).addcmul_(g, g, value=1.0 - o["beta_2"])
        mean = momentum * (after / (1.0 - product * after)) + g * ((1.0 - now) / (1.0 - product))
        spread = (velocity / (1.0 - o["beta_2"] ** step)).sqrt_().add_(o["epsilon"])
        p.addcdiv_(mean, spread, value=-o["lr"])


def _nadam_part(beta: float, step: int) -> float:
    return beta * (1.0 - 0.5 * 0.96**step)


_products: dict[float, tuple[int, float]] = {}


def nadam_product(beta: float, step: int) -> float:
    """Return the product over all steps so far, from the last one that was asked for."""
    done, product = _products.get(beta, (0, 1.0))
    if done > step:
        done, product = 0, 1.0
    for each in range(done + 1, step + 1):
        product *= _nadam_part(beta, each)
    _products[beta] = step, product
    return product


class KerasAdamax(KerasRule):
    options: ClassVar = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}
    slots = ("momentum", "norm")
    counts = True

    def update(self, p: Tensor, g: Tensor, state: State, o: Options) -> None:
        momentum, norm = state["momentum"], state["norm"]
        momentum.lerp_(g, 1.0 - o["beta_1"])
        torch.maximum(norm.mul_(o["beta_2"]), g.abs(), out=norm)
        rate = o["lr"] / (1.0 - _base(o, "beta_1") ** float(state["step"]))
        p.addcdiv_(momentum, norm + o["epsilon"], value=-rate)


class KerasRMSprop(KerasRule):
    options: ClassVar = {"rho": 0.9, "momentum": 0.0, "epsilon": 1e-7, "centered": False}

    def used_slots(self, group: Options) -> tuple[str, ...]:
        moving = ("momentum",) if group["momentum"] else ()
        return ("velocity", *moving, *(("average_gradient",) if group["centered"] else ()))

    def update(self, p: Tensor, g: Tensor, state: State, o: Options) -> None:
        spread = state["velocity"].mul_(o["rho"]).addcmul_(g, g, value=1.0 - o["rho"])
        if o["centered"]:
            mean = state["average_gradient"].mul_(o["rho"]).add_(g, alpha=1.0 - o["rho"])
            spread = spread.addcmul(mean, mean, value=-1.0)
        spread = (spread + o["epsilon"]).sqrt_()
        if o["momentum"]:
            p.sub_(state["momentum"].mul_(o["momentum"]).addcdiv_(g, spread, value=o["lr"]))
        else:
            p.addcdiv_(g, spread, value=-o["lr"])


class KerasAdagrad(KerasRule):
    """Duchi et al., "Adaptive subgradient methods", 2011."""

    options: ClassVar = {"initial_accumulator_value": 0.1, "epsilon": 1e-7}
    slots = ("accumulator",)

    def update(self, p: Tensor, g: Tensor, state: State, o: Options) -> None:
        sums = state["accumulator"].addcmul_(g, g)
        p.addcdiv_(g, (sums + o["epsilon"]).sqrt_(), value=-o["lr"])


class KerasAdadelta(KerasRule):
    """Zeiler, "ADADELTA: an adaptive learning rate method", 2012."""

    options: ClassVar = {"rho": 0.95, "epsilon": 1e-7}
    slots = ("accumulated_grad", "accumulated_delta_var")

    def update(self, p: Tensor, g: Tensor, state: State, o: Options) -> None:
        rho, epsilon = o["rho"], o["epsilon"]
        squares = state["accumulated_grad"].mul_(rho).addcmul_(g, g, value=1.0 - rho)
        moves = state["accumulated_delta_var"]
        delta = g * (moves + epsilon).sqrt_() / (squares + epsilon).sqrt_()
        moves.mul_(rho).addcmul_(delta, delta, value=1.0 - rho)
        p.add_(delta, alpha=-o["lr"])


class KerasLion(KerasRule):
    """Chen et al., "Symbolic discovery of optimization algorithms", 2023."""

    options: ClassVar = {"beta_1": 0.9, "beta_2": 0.99}
    slots = ("momentum",)

    def update(self, p: Tensor, g: Tensor, state: State, o: Options) -> None:
        p.add_(torch.lerp(state["momentum"], g, 1.0 - o["beta_1"]).sign_(), alpha=-o["lr"])
        state["momentum"].lerp_(g, 1.0 - o["beta_2"])


class KerasFtrl(KerasRule):
    """McMahan et al., "Ad click prediction: a view from the trenches", 2013."""

    options: ClassVar = {
        "learning_rate_power": -0.5,
        "initial_accumulator_value": 0.1,
        "l1_regularization_strength": 0.0,
        "l2_regularization_strength": 0.0,
        "l2_shrinkage_regularization_strength": 0.0,
        "beta": 0.0,
    }
    slots = ("accumulator", "linear")

    def update(self, p: Tensor, g: Tensor, state: State, o: Options) -> None:
        sums, linear, rate = state["accumulator"], state["linear"], o["lr"]
        power, most = -o["learning_rate_power"], o["l1_regularization_strength"]
        before = sums.pow(power)
        after = sums.addcmul_(g, g).pow(power)
        shrunk = g.add(p, alpha=2.0 * o["l2_shrinkage_regularization_strength"])
        linear.add_(shrunk).addcmul_((after - before) / rate, p, value=-1.0)
        flat = o["l2_regularization_strength"] + o["beta"] / (2.0 * rate)
        p.copy_((linear.clamp(-most, most) - linear) / (after / rate + 2.0 * flat))


KERAS_RULES = (
    KerasSGD, KerasAdam, KerasNadam, KerasAdamax, KerasRMSprop, KerasAdagrad, KerasAdadelta,
    KerasLion, KerasFtrl,
)  # fmt: skip


def by_variable(kind: type[KerasRule]) -> type[KerasRule]:
    """Return the rule for whole variables, if it needs their norm and cannot be cut into shards."""
    return type(f"{kind.__name__}ByVariable", (kind,), {})
