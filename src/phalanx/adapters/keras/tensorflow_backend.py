"""Keras on TensorFlow: one graph that assigns the parameters and computes gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import dlpack

from phalanx.adapters.keras.keras_model import KerasModel, VariableRow


class TensorFlowKerasModel(KerasModel):
    def _prepare(self) -> None:
        import tensorflow as tf

        self._tf, model, layout = tf, self.model, VariableRow(self.variables)
        self._layout = layout

        def flattened(gradient: Any) -> Any:  # an embedding's gradient is sparse
            return tf.reshape(tf.convert_to_tensor(gradient), [-1])

        def assign(flat: Any) -> None:
            places = zip(self.variables, layout.spans, layout.shapes, strict=True)
            for variable, (start, end), shape in places:
                variable.value.assign(tf.reshape(flat[start:end], shape))

        def gradients(flat: Any, batch: Any) -> Any:
            assign(flat)
            with self.intercepted():
                logs = model.train_step(batch)
            return logs, tf.concat([flattened(g) for g in self._used_gradients()], 0)

        self._assign = tf.function(assign)
        self._gradients: Any = gradients
        self._traced: dict[Any, Any] = {}
        if not model.run_eagerly:
            self._gradients = tf.function(
                gradients, reduce_retracing=True, jit_compile=model.jit_compile, autograph=False
            )
        self.load()

    def gradients(self, batch: Any) -> dict[str, Any]:
        constants = self._tf.nest.map_structure(self._tf.convert_to_tensor, batch)
        logs, found = self._function_for(batch, constants)(self._flat, constants)
        here = found.device.endswith("CPU:0")
        row = dlpack.from_dlpack(found) if here else torch.from_numpy(found.numpy())
        self._layout.give(row, self._used, self.parameters)
        return dict(logs)

    def _function_for(self, batch: Any, constants: Any) -> Any:
        """Return the graph for batches of these types, traced once for any number of samples:
        TensorFlow's own lookup takes longer than a small step. TensorFlow traces a script's
        own ``train_step`` anew where needed: it may depend on the number of samples."""
        if self.own_step or self.model.run_eagerly:
            return self._gradients
        nest, spec = self._tf.nest, self._tf.TensorSpec
        key = tuple((each.dtype, each.shape[1:]) for each in nest.flatten(batch))
        if key not in self._traced:
            specs = nest.map_structure(lambda t: spec([None, *t.shape[1:]], t.dtype), constants)
            self._traced[key] = self._gradients.get_concrete_function(self._flat, specs)
        return self._traced[key]

    def checked_gradients(self, batch: Any) -> dict[str, Any]:
        self._assign(self._flat)
        return super().checked_gradients(batch)

    def load(self) -> None:
        self._flat = self._tf.convert_to_tensor(self._layout.join(self.parameters).numpy())

    def show(self) -> None:
        self._assign(self._flat)
        super().show()

    def read_buffers(self) -> None:
        for variable, buffer in self.buffers:
            buffer.copy_(torch.from_numpy(variable.value.numpy()))
