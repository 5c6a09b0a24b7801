"""Each rule does what Keras' own optimizer does, on whole variables and on pieces of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from keras_here import in_doubles, keras_on
from torch import Tensor, nn

from phalanx.adapters.keras.optimizers import KINDS, rate_of, read_state, rule_of, write_state
from phalanx.core.errors import InputError
from phalanx.sync.state.keras_rules import KERAS_RULES, KerasRule, by_variable
from phalanx.sync.state.shard_optimizer import elementwise_kind, is_elementwise

SHAPES = [(4, 3), (5,)]
STEPS = 20
NEAR, NEAR_NORM = 1e-11, 1e-6
"""The norm of a gradient is a float32 in Keras, whatever the gradient is."""
Options = dict[str, Any]

OPTIMIZERS: dict[str, tuple[str, Options]] = {
    "sgd": ("SGD", {}),
    "sgd-momentum": ("SGD", {"momentum": 0.9}),
    "sgd-nesterov": ("SGD", {"momentum": 0.8, "nesterov": True}),
    "adam": ("Adam", {}),
    "adam-betas": ("Adam", {"beta_1": 0.7, "beta_2": 0.9, "epsilon": 1e-3}),
    "adam-amsgrad": ("Adam", {"amsgrad": True, "beta_2": 0.5}),
    "adamw": ("AdamW", {}),
    "nadam": ("Nadam", {}),
    "adamax": ("Adamax", {"beta_2": 0.9}),
    "rmsprop": ("RMSprop", {}),
    "rmsprop-momentum": ("RMSprop", {"momentum": 0.9}),
    "rmsprop-centered": ("RMSprop", {"centered": True, "momentum": 0.5}),
    "adagrad": ("Adagrad", {"initial_accumulator_value": 0.2}),
    "adadelta": ("Adadelta", {}),
    "lion": ("Lion", {}),
    "ftrl": ("Ftrl", {}),
    "ftrl-l1": ("Ftrl", {"l1_regularization_strength": 0.05}),
    "ftrl-l2": (
        "Ftrl",
        {"l2_regularization_strength": 0.1, "l2_shrinkage_regularization_strength": 0.05},
    ),
    "ftrl-beta": ("Ftrl", {"beta": 0.3, "learning_rate_power": -0.7}),
}
COMMON: dict[str, Options] = {
    "plain": {},
    "weight_decay": {"weight_decay": 0.1},
    "clipvalue": {"clipvalue": 0.5},
    "clipnorm": {"clipnorm": 0.75, "weight_decay": 0.05},
}


@pytest.fixture(autouse=True)
def keras() -> Iterator[Any]:
    """Every variable and rate is a float64, so that only the rules can differ."""
    found = keras_on("torch")
    with in_doubles(found):
        yield found


class _Pair:
    """A Keras optimizer with variables, and its rule with a mirror of them."""

    def __init__(self, keras: Any, name: str, options: Options, rate: Any = 0.05) -> None:
        draw = np.random.default_rng(0)
        self.variables = [
            keras.Variable(draw.normal(size=shape), name=f"v{i}") for i, shape in enumerate(SHAPES)
        ]
        self.optimizer = getattr(keras.optimizers, name)(learning_rate=rate, **options)
        self.optimizer.build(self.variables)
        self.parameters = [nn.Parameter(v.value.detach().clone()) for v in self.variables]
        self.rule = self.new_rule()
        self._keras, self._draw = keras, np.random.default_rng(1)

    def new_rule(self) -> Any:
        return rule_of(self)  # type: ignore[arg-type]

    def step(self, *, keras: bool = True, mirror: bool = True) -> None:
        """The same gradients for both."""
        gradients = [torch.from_numpy(self._draw.normal(size=shape)) for shape in SHAPES]
        for group in self.rule.param_groups:
            group["lr"] = rate_of(self.optimizer)
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = gradient.clone()
        if keras:
            self.optimizer.apply([gradient.clone() for gradient in gradients], self.variables)
        if mirror:
            self.rule.step()

    def gap(self) -> float:
        return max(
            float((parameter.detach() - variable.value.detach()).abs().max())
            for parameter, variable in zip(self.parameters, self.variables, strict=True)
        )


@pytest.mark.parametrize("common", COMMON.values(), ids=list(COMMON))
@pytest.mark.parametrize(("name", "options"), OPTIMIZERS.values(), ids=list(OPTIMIZERS))
def test_as_keras_does(keras: Any, name: str, options: Options, common: Options) -> None:
    pair = _Pair(keras, name, {**options, **common})
    before = [parameter.detach().clone() for parameter in pair.parameters]
    for _ in range(STEPS):
        pair.step()
        assert pair.gap() <= (NEAR_NORM if "clipnorm" in common else NEAR)
    assert not any(map(torch.equal, pair.parameters, before))


def test_a_variable_that_is_left_out_of_the_decay(keras: Any) -> None:
    pair = _Pair(keras, "AdamW", {"weight_decay": 0.5})
    pair.optimizer.exclude_from_weight_decay(var_list=[pair.variables[1]])
    pair.rule = pair.new_rule()
    assert sorted(group["weight_decay"] for group in pair.rule.param_groups) == [0.0, 0.5]
    for _ in range(STEPS):
        pair.step()
    assert pair.gap() <= NEAR


@pytest.mark.parametrize(("name", "options"), OPTIMIZERS.values(), ids=list(OPTIMIZERS))
def test_a_rule_goes_on_from_the_state_of_keras(keras: Any, name: str, options: Options) -> None:
    pair = _Pair(keras, name, options)
    for _ in range(3):
        pair.step(mirror=False)
    for parameter, variable in zip(pair.parameters, pair.variables, strict=True):
        parameter.data.copy_(variable.value)
    pair.rule = pair.new_rule()
    read_state(pair, pair.rule)  # type: ignore[arg-type]
    for _ in range(STEPS):
        pair.step()
        assert pair.gap() <= NEAR


@pytest.mark.parametrize(
    ("name", "options"),
    [pytest.param(*case, id=key) for key, case in OPTIMIZERS.items()],
)
def test_keras_goes_on_from_the_state_of_a_rule(keras: Any, name: str, options: Options) -> None:
    pair = _Pair(keras, name, options)
    for _ in range(3):
        pair.step(keras=False)
    for parameter, variable in zip(pair.parameters, pair.variables, strict=True):
        variable.assign(parameter.detach())
    write_state(pair.rule, pair)  # type: ignore[arg-type]
    pair.optimizer.iterations.assign(3)
    for _ in range(STEPS):
        pair.step()
        assert pair.gap() <= NEAR


# -- pieces ---------------------------------------------------------------------------------------

PIECES: list[tuple[type[KerasRule], Options]] = [
    *((kind, {}) for kind in KERAS_RULES),
    *((KINDS[name], options) for name, options in OPTIMIZERS.values() if options),
]


def _train(
    kind: type[KerasRule], options: Options, pieces: Callable[[Tensor], list[Tensor]]
) -> Tensor:
    """What steps on ``pieces`` make of 12 numbers."""
    torch.manual_seed(0)
    values = torch.randn(12, dtype=torch.float64)
    parts = [nn.Parameter(part) for part in pieces(values)]
    rules = [kind([part], lr=0.05, weight_decay=0.1, clipvalue=0.7, **options) for part in parts]
    for _ in range(STEPS):
        gradient = torch.randn(12, dtype=torch.float64)
        for part, own, rule in zip(parts, pieces(gradient), rules, strict=True):
            part.grad = own
            rule.step()
    return torch.cat([part.detach() for part in parts])


@pytest.mark.parametrize(("kind", "options"), PIECES, ids=str)
def test_pieces_of_a_parameter_are_updated_as_the_whole(
    kind: type[KerasRule], options: Options
) -> None:
    whole = _train(kind, options, lambda values: [values])
    halves = _train(kind, options, lambda values: [values[:5], values[5:]])
    torch.testing.assert_close(halves, whole, rtol=0, atol=1e-14)


def test_every_rule_may_be_cut_but_not_by_variable() -> None:
    assert set(KINDS.values()) == set(KERAS_RULES)
    for kind in KERAS_RULES:
        assert is_elementwise(kind([nn.Parameter(torch.zeros(2))]))
        assert elementwise_kind(kind.__name__) is kind
        assert elementwise_kind(by_variable(kind).__name__) is None
        assert not is_elementwise(by_variable(kind)([nn.Parameter(torch.zeros(2))]))


def test_the_norm_of_a_variable_is_that_of_the_whole(keras: Any) -> None:
    assert not is_elementwise(_Pair(keras, "Adam", {"clipnorm": 1.0}).rule)
    assert is_elementwise(_Pair(keras, "Adam", {"clipvalue": 1.0}).rule)


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"use_ema": True}, "use_ema"),
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps"),
        ({"loss_scale_factor": 8.0}, "loss_scale_factor"),
    ],
)
def test_options_that_are_refused(keras: Any, options: Options, words: str) -> None:
    with pytest.raises(InputError, match=words):
        _Pair(keras, "SGD", options)


def test_optimizers_that_are_refused(keras: Any) -> None:
    """One that Phalanx does not know, and a class of the script's own, whatever its name."""

    class SGD(keras.optimizers.SGD):  # type: ignore[name-defined, misc]
        pass

    for optimizer in (keras.optimizers.Adafactor(), SGD()):
        with pytest.raises(InputError, match="cannot be shared"):
            rule_of(SimpleNamespace(optimizer=optimizer, variables=[]))  # type: ignore[arg-type]


def test_constraints_are_refused(keras: Any) -> None:
    layer = keras.layers.Dense(2, kernel_constraint="non_neg")
    layer.build((None, 3))
    variables = layer.trainable_variables
    with pytest.raises(InputError, match="constraint"):
        rule_of(SimpleNamespace(optimizer=keras.optimizers.SGD(), variables=variables))  # type: ignore[arg-type]
