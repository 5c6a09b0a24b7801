"""A Keras model as the engine sees it: a mirror in torch of its variables, and gradients for it.

The engine exchanges and updates the mirror's parameters, one for each trainable variable. The
model's own ``train_step`` computes the gradients: they are intercepted on their way to the model's
optimizer. On Keras' torch backend the mirror's parameters are the variables themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.adapters.torch_models import Mirror
from phalanx.core.errors import InputError

AVERAGED = {"moving_mean", "moving_variance"}
"""Statistics of batch normalisation, which the engine averages over workers."""


class KerasModel:
    """A model and its mirror: ``load`` after each step, ``show`` before Keras uses the model."""

    shows_losses = False
    """Whether the engine sees the losses' backward passes, and so reads the losses itself."""
    shares_memory = False
    """Whether the mirror is the model's own variables."""
    alone = False
    """Whether ``gradients`` makes the update too, in Keras' own way, for a lone worker."""
    rule: Any = None
    """The torch optimizer of the mirror, once there is one."""

    def __init__(self, model: Any) -> None:
        self.model, self.optimizer = model, model.optimizer
        self.variables = list(model.trainable_variables)
        self._places = {id(variable): i for i, variable in enumerate(self.variables)}
        self.states, frozen = _states_and_frozen(model)
        self.parameters = [self._mirror(variable) for variable in self.variables]
        self.module = _module_of(
            self.variables,
            self.parameters,
            [(v, self._buffer(v)) for v in self.states],
            [self._buffer(v) for v in frozen],
        )
        self.buffers = [(v, self.module.buffer_of[id(v)]) for v in self.states]
        self.frozen = list(zip(frozen, self.module.frozen, strict=True))
        self.all_variables = [*self.variables, *self.states, *frozen]
        self.module.refresh = self.read_buffers
        self.own_step = not type(model).train_step.__module__.startswith("keras.")
        self._applied: list[Any] = []
        """The gradients given to the optimizer in this step; ``None`` where a variable has none."""
        self._used: list[int] = []
        """Indices of the variables that had a gradient in the last step that was traced."""
        self._prepare()

    # -- what a backend decides --------------------------------------------------------------

    def _mirror(self, variable: Any) -> nn.Parameter:
        return nn.Parameter(copy_of(variable))

    def _buffer(self, variable: Any) -> Tensor:
        return copy_of(variable)

    def _prepare(self) -> None:
        """Prepare what ``gradients`` needs, once for all steps."""

    @staticmethod
    def convert(rows: Any) -> Any:
        """Convert a NumPy array of a batch to the type that ``gradients`` takes."""
        return rows

    def save_metrics(self) -> list[Any]:
        return [copy_of(variable).numpy() for variable in self.model.metrics_variables]

    def restore_metrics(self, saved: list[Any]) -> None:
        """Set the metrics back to ``saved``, after a step on samples that do not count."""
        for variable, value in zip(self.model.metrics_variables, saved, strict=True):
            variable.assign(value)

    def begin_epoch(self) -> None:
        """Take over what Keras has changed: metrics, variables, or the mode of training."""

    def gradients(self, batch: Any) -> dict[str, Any]:
        """Do a training step without the update: set every ``.grad``, and return the logs."""
        raise NotImplementedError

    def unchanged(self) -> list[Tensor]:
        """Return copies of the trained and frozen variables, which no ``train_step`` may write."""
        return [copy_of(v) for v in (*self.variables, *(v for v, _ in self.frozen))]

    def checked_gradients(self, batch: Any) -> dict[str, Any]:
        """Call ``gradients``; refuse a ``train_step`` of the script that writes weights itself."""
        before, logs = self.unchanged(), self.gradients(batch)
        variables = [*self.variables, *(variable for variable, _ in self.frozen)]
        for variable, old, new in zip(variables, before, self.unchanged(), strict=True):
            if not torch.equal(old, new):
                raise InputError(
                    f"the model's train_step writes {variable.path} itself, beside its "
                    "optimizer's update",
                    "Phalanx updates the weights after train_step: write them in a callback at "
                    "the end of an epoch, or train with one worker.",
                )
        return logs

    def load(self) -> None:
        """Make the next step compute with the mirror's parameters."""

    def read_buffers(self) -> None:
        """Copy the model's states, as training has changed them, to the mirror's buffers."""

    def show(self) -> None:
        """Copy the mirror's values to the Keras variables, and training's counts to the metrics."""
        for variable, buffer in self.buffers:
            variable.assign(buffer.cpu().numpy())

    def show_frozen(self) -> None:
        for variable, parameter in self.frozen:
            variable.assign(parameter.detach().cpu().numpy())

    def take_states(self, values: Sequence[Tensor]) -> None:
        """Set buffers and frozen variables to ``values``, in the mirror and in the model."""
        for (variable, mirror), value in zip((*self.buffers, *self.frozen), values, strict=True):
            mirror.detach().copy_(value)
            variable.assign(value.cpu().numpy())

    @contextmanager
    def lent(self, steps: int) -> Iterator[list[Any]]:
        """Let callbacks look at the model after ``steps`` steps: it is brought up to date when they
        first read a variable. Yield the list of trained variables that they assign."""
        from keras.src.backend.common.variables import Variable

        assign, value, written = Variable.assign, Variable.value, list[Any]()
        rate, shown, showing = self.optimizer._learning_rate, False, False

        def show() -> None:
            nonlocal shown, showing
            shown = showing = True
            self.count_steps(steps)
            self.read_buffers()
            self.show()
            showing = False

        def noted_assign(variable: Any, given: Any) -> Any:
            if id(variable) in self._places and not showing:
                written.append(variable)
            return assign(variable, given)

        def shown_value(variable: Any) -> Any:
            if not shown and variable is not rate:  # only once: keep what callbacks write
                show()
            return value.fget(variable)

        Variable.assign, Variable.value = noted_assign, property(shown_value)
        try:
            yield written
        finally:
            Variable.assign, Variable.value = assign, value

    def count_steps(self, steps: int) -> None:
        """Set the number of updates made, which the script's own ``train_step`` may ask for."""
        self.optimizer._iterations.assign(steps)

    # -- the model's optimizer, which the engine's optimizer replaces ----------------------------

    @contextmanager
    def intercepted(self) -> Iterator[None]:
        """Within this context, gradients given to the model's optimizer are kept, and applied
        only if this worker is ``alone``."""
        from keras.src.optimizers.base_optimizer import BaseOptimizer

        object.__setattr__(self.optimizer, "apply", self._intercept)
        self._apply, BaseOptimizer.apply = BaseOptimizer.apply, _refuse_other
        try:
            yield
        finally:
            BaseOptimizer.apply = self._apply
            object.__delattr__(self.optimizer, "apply")

    def _intercept(
        self, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None
    ) -> None:
        if trainable_variables is None:
            trainable_variables = self.optimizer._trainable_variables
        found: list[Any] = [None] * len(self.variables)
        for gradient, variable in zip(grads, trainable_variables, strict=True):
            place = self._places.get(id(variable))
            if place is None:
                raise InputError(
                    f"the model's train_step updates {variable.path}, which is not among the "
                    "model's trainable variables",
                    "Give the optimizer only model.trainable_variables.",
                )
            found[place] = gradient
        if any(g is not None for g in self._applied):
            raise InputError(
                "the model's train_step updates its variables more than once per batch",
                "Phalanx exchanges one gradient per batch: add the losses, and apply once.",
            )
        self._applied = found
        if self.alone:
            self._apply(self.optimizer, grads, trainable_variables)

    def _intercepted_gradients(self) -> list[Any]:
        found, self._applied = self._applied, []
        if not found:
            raise InputError(
                "the model's train_step gives no gradients to model.optimizer",
                "Call self.optimizer.apply(gradients, variables) with the compiled optimizer.",
            )
        return found

    def _used_gradients(self) -> list[Any]:
        """Return the gradients that are not ``None``, and keep the indices of their variables."""
        found = self._intercepted_gradients()
        self._used = [i for i, gradient in enumerate(found) if gradient is not None]
        return [found[i] for i in self._used]


def _refuse_other(*args: Any, **kwargs: Any) -> None:
    raise InputError(
        "the model's train_step uses an optimizer that the model was not compiled with",
        "Phalanx exchanges the gradients of one optimizer: train such models with one worker.",
    )


def _module_of(
    variables: Sequence[Any],
    parameters: Sequence[nn.Parameter],
    states: Sequence[tuple[Any, Tensor]],
    frozen: Sequence[Tensor],
) -> Mirror:
    module = Mirror()
    for variable, parameter in zip(variables, parameters, strict=True):
        module.register_parameter(_free_name(module, variable.path), parameter)
    module.frozen, module.buffer_of = [], {}
    for i, value in enumerate(frozen):
        parameter = value if isinstance(value, nn.Parameter) else nn.Parameter(value, False)
        module.frozen.append(parameter)
        module.register_parameter(f"frozen_{i}", parameter)
    for variable, buffer in states:
        holder: nn.Module = module
        if variable.name in AVERAGED:  # the engine looks for modules that have running statistics
            holder = nn.Module()
            module.add_module(_free_name(module, variable.path), holder)
            holder.register_buffer("running_mean", buffer)
        else:
            holder.register_buffer(_free_name(module, variable.path), buffer)
        module.buffer_of[id(variable)] = buffer
    return module


def _free_name(module: nn.Module, path: str) -> str:
    name = path.replace(".", "_").replace("/", "_") or "variable"
    while hasattr(module, name):
        name += "_"
    return name


def _states_and_frozen(model: Any) -> tuple[list[Any], list[Any]]:
    """Return the variables that training changes without the optimizer, and those that nothing
    changes. Seeds are in neither list: each worker has its own."""
    kept = {
        id(v)
        for layer in model._flatten_layers(include_self=True, recursive=True)
        for v in layer._non_trainable_variables
    }
    others = [v for v in model.non_trainable_variables if "seed_generator_state" not in v.path]
    states = [v for v in others if id(v) in kept]
    return states, [v for v in others if id(v) not in kept]


def copy_of(variable: Any) -> Tensor:
    from keras import ops

    return torch.from_numpy(ops.convert_to_numpy(variable.value).copy())


class VariableRow:
    """The variables as one flat row: the span and the shape of each."""

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
        """Return the parameters as one row, a copy whose memory a framework may keep."""
        return torch.cat([parameter.detach().reshape(-1) for parameter in parameters])

    def split(self, flat: Any) -> list[Any]:
        """Split a framework's flat array into the variables' arrays."""
        spans = zip(self.spans, self.shapes, strict=True)
        return [flat[start:end].reshape(shape) for (start, end), shape in spans]

    def give(self, flat: Tensor, used: Sequence[int], parameters: Sequence[nn.Parameter]) -> None:
        """Set ``.grad`` of the ``used`` parameters from a flat row, and clear all others."""
        for parameter in parameters:
            parameter.grad = None
        parts = flat.split([self._sizes[i] for i in used])
        for i, part in zip(used, parts, strict=True):
            parameters[i].grad = part.view(self.shapes[i])
