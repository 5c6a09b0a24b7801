"""Keras on TensorFlow: one graph for the gradients, one that assigns the parameters."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import dlpack

from phalanx.adapters.keras.flat import VariableRow
from phalanx.adapters.keras.guest import Guest


class TensorFlowGuest(Guest):
    def _prepare(self) -> None:
        import tensorflow as tf

        self._tf, model, layout = tf, self.model, VariableRow(self.variables)
        self._layout = layout

        def flattened(gradient: Any) -> Any:  # that of an embedding is sparse
            return tf.reshape(tf.convert_to_tensor(gradient), [-1])

        def gradients(batch: Any) -> Any:
            with self.intercepted():
                logs = model.train_step(batch)
            return logs, tf.concat([flattened(g) for g in self._used_gradients()], 0)

        def assign(flat: Any) -> None:
            places = zip(self.variables, layout.spans, layout.shapes, strict=True)
            for variable, (start, end), shape in places:
                variable.value.assign(tf.reshape(flat[start:end], shape))

        self._assign = tf.function(assign)
        self._gradients = gradients
        if not model.run_eagerly:
            self._gradients = tf.function(
                gradients, reduce_retracing=True, jit_compile=model.jit_compile, autograph=False
            )

    def gradients(self, batch: Any) -> dict[str, Any]:
        constants = self._tf.nest.map_structure(self._tf.convert_to_tensor, batch)
        logs, found = self._gradients(constants)
        self._layout.give(dlpack.from_dlpack(found), self._used, self.parameters)
        return dict(logs)

    def load(self) -> None:
        self._assign(self._tf.convert_to_tensor(self._layout.join(self.parameters).numpy()))

    def read_buffers(self) -> None:
        for variable, buffer in self.buffers:
            buffer.copy_(torch.from_numpy(variable.value.numpy()))
