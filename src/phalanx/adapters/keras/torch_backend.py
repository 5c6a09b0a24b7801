"""Keras on torch, whose variables are torch parameters already."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from phalanx.adapters.keras.keras_model import KerasModel


class TorchKerasModel(KerasModel):
    shows_losses = shares_memory = True

    def _mirror(self, variable: Any) -> nn.Parameter:
        parameter: nn.Parameter = variable.value
        return parameter

    def _buffer(self, variable: Any) -> Tensor:
        """Return the tensor of a variable itself, which Keras changes in place."""
        value: Tensor = variable.value
        return value

    @staticmethod
    def convert(rows: Any) -> Any:
        from keras import ops

        return ops.convert_to_tensor(rows)

    def begin_epoch(self) -> None:
        self.model.train()

    def gradients(self, batch: Any) -> dict[str, Any]:
        with self.intercepted():
            logs: dict[str, Any] = self.model.train_step(batch)
        for parameter, gradient in zip(self.parameters, self._intercepted_gradients(), strict=True):
            parameter.grad = gradient
        return logs

    def show(self) -> None:
        """Put the model in the mode that Keras leaves it in between steps. Its variables need no
        copy: they are the mirror."""
        self.model.eval()

    def show_frozen(self) -> None:
        """Do nothing: the variables are the mirror."""
