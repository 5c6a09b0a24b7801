"""Keras on JAX: one compiled function from parameters and a batch to gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import dlpack

from phalanx.adapters.keras.keras_model import KerasModel, VariableRow, copy_of
from phalanx.adapters.keras.optimizers import read_state, write_state
from phalanx.sync.strategy import Timing


class JaxKerasModel(KerasModel):
    """A Keras model on JAX; its mirror is on JAX's device, or the CPU if torch cannot use that."""

    def _mirror(self, variable: Any) -> nn.Parameter:
        return nn.Parameter(self._buffer(variable))

    def _buffer(self, variable: Any) -> Tensor:
        return copy_of(variable).to(self._device)

    @cached_property
    def _device(self) -> torch.device:
        import jax

        (device,) = jax.numpy.zeros(1).devices()
        if device.platform == "gpu" and torch.cuda.is_available():
            return torch.device("cuda", device.local_hardware_id)
        return torch.device("cpu")

    def _prepare(self) -> None:
        import jax

        self._jax, model, layout = jax, self.model, VariableRow(self.variables)
        self._layout, self._written = layout, ()

        def gradients(flat: Any, others: Any, state: Any, metrics: Any, batch: Any) -> Any:
            trained = layout.split(flat)
            with self.intercepted():
                logs, after = model.train_step((trained, others, state, metrics), batch)
            row = jax.numpy.concatenate([g.reshape(-1) for g in self._used_gradients()])
            return logs, row, after[0] if self.own_step else (), after[1], after[3]

        compiles = not model.run_eagerly and model.jit_compile
        self._gradients = jax.jit(gradients, donate_argnums=(1, 3)) if compiles else gradients
        self._state = [v.value for v in self.optimizer.variables]
        self._read()
        self.load()

    def _read(self) -> None:
        """Copy Keras' untrained variables and metrics: the compiled function reuses this memory."""
        copy = self._jax.numpy.array
        self._others = [copy(v.value, copy=True) for v in self.model.non_trainable_variables]
        self._metrics = [copy(v.value, copy=True) for v in self.model.metrics_variables]

    def save_metrics(self) -> list[Any]:
        return [self._jax.numpy.array(value, copy=True) for value in self._metrics]

    def restore_metrics(self, saved: list[Any]) -> None:
        self._metrics = saved

    def begin_epoch(self) -> None:
        self._read()

    def unchanged(self) -> list[Tensor]:
        values = self._values()
        frozen = [values[id(variable)] for variable, _ in self.frozen]
        trained = self._written or self._layout.split(self._flat)
        return [torch.from_numpy(np.array(value)) for value in (*trained, *frozen)]

    def take_states(self, values: Sequence[Tensor]) -> None:
        super().take_states(values)
        self._read()

    def count_steps(self, steps: int) -> None:
        super().count_steps(steps)
        self._state = [v.value for v in self.optimizer.variables]

    def gradients(self, batch: Any) -> dict[str, Any]:
        logs, found, self._written, self._others, self._metrics = self._gradients(
            self._flat, self._others, self._state, self._metrics, batch
        )
        (device,) = found.devices()
        if device.platform == ("cpu" if self._device.type == "cpu" else "gpu"):
            row = dlpack.from_dlpack(found)
        else:  # JAX computes on a device that torch cannot use
            row = torch.from_numpy(np.array(found))
        self._layout.give(row, self._used, self.parameters)
        return dict(logs)

    def load(self) -> None:
        jax, flat = self._jax, self._layout.join(self.parameters)
        on_cpu = self._device.type == "cpu"  # JAX may compute on a device that torch cannot use
        self._flat = jax.device_put(flat.numpy()) if on_cpu else jax.dlpack.from_dlpack(flat)

    def read_buffers(self) -> None:
        values = self._values()
        for variable, buffer in self.buffers:
            buffer.copy_(torch.from_numpy(np.array(values[id(variable)])))

    def _values(self) -> dict[int, Any]:
        """Return the values of variables that are not trained, by their ids."""
        return dict(zip(map(id, self.model.non_trainable_variables), self._others, strict=True))

    def show(self) -> None:
        copy, model = self._jax.numpy.array, self.model
        for variable, parameter in zip(self.variables, self.parameters, strict=True):
            variable.assign(np.array(parameter.detach().cpu().numpy()))
        for variables, values in (
            (model.non_trainable_variables, self._others),
            (model.metrics_variables, self._metrics),
        ):
            for variable, value in zip(variables, values, strict=True):
                variable.assign(copy(value, copy=True))  # the compiled function reuses ``value``
        super().show()


class LoneJaxKerasModel(KerasModel):
    """A Keras model on JAX that one worker trains: one compiled function computes and updates, as
    Keras' own does. Variables and mirror follow when they are read."""

    alone = True
    _live: Any = None
    """What steps have come to; ``None`` while the variables and the mirror hold it."""

    def _prepare(self) -> None:
        import jax

        self._array, model = jax.numpy.array, self.model
        self._groups = (
            self.variables, model.non_trainable_variables, self.optimizer.variables,
            model.metrics_variables,
        )  # fmt: skip

        def step(state: Any, batch: Any) -> Any:
            with self.intercepted():
                logs, (trained, others, (count, *slots), metrics) = model.train_step(state, batch)
            wide = [g * np.float32(1) for g in self._used_gradients()]  # 16 bits become 32
            sound = jax.numpy.stack([jax.numpy.isfinite(g * g).all() for g in wide]).all()
            new, old = ([*trained], slots), (state[0], state[2][1:])
            trained, slots = jax.tree.map(partial(jax.numpy.where, sound), new, old)
            return logs, sound, (trained, others, [count, *slots], metrics)

        compiles = not model.run_eagerly and model.jit_compile
        self._step = jax.jit(step, donate_argnums=0) if compiles else step

    def gradients(self, batch: Any) -> dict[str, Any]:
        if self._live is None:
            self._live = [[self._array(v.value, copy=True) for v in g] for g in self._groups]
        if not callable(rate := self.optimizer._learning_rate):  # a callback may have set it
            self._live[2][1] = np.asarray(rate.value)
        logs, self._sound, self._live = self._step(self._live, batch)
        return dict(logs)

    def exchange(self, scale: float, clip: float | None = None) -> Timing:
        """Say whether the update was made: it was not if a gradient was not finite."""
        return Timing(refused=None if self._sound else (0,))

    def load(self) -> None:
        if self._live is not None:
            return  # the mirror has nothing newer
        for variable, parameter in zip(self.variables, self.parameters, strict=True):
            variable.assign(parameter.detach().numpy())
        write_state(self.rule, self)

    def read_buffers(self) -> None:
        if self._live is None:
            return
        values, self._live = chain.from_iterable(self._live), None
        for variable, value in zip(chain.from_iterable(self._groups), values, strict=True):
            if variable is not self.optimizer._learning_rate:
                variable.assign(value)
        for variable, mirror in chain(
            zip(self.variables, self.parameters, strict=True), self.buffers
        ):
            mirror.detach().copy_(copy_of(variable))
        read_state(self, self.rule)
