"""A residual multilayer perceptron as a subclass of Model, for regression on a table."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(1)


class Block(layers.Layer):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape):
        self.w = self.add_weight(shape=(input_shape[-1], self.units), name="w")
        self.b = self.add_weight(shape=(self.units,), initializer="zeros", name="b")
        super().build(input_shape)

    def call(self, inputs):
        return inputs + ops.tanh(ops.matmul(inputs, self.w) + self.b)


class Regressor(keras.Model):
    def __init__(self, width=16, depth=2):
        super().__init__()
        self.normalize = layers.LayerNormalization()
        self.project = layers.Dense(width)
        self.blocks = [Block(width) for _ in range(depth)]
        self.head = layers.Dense(1)

    def call(self, inputs, training=False):
        x = self.project(self.normalize(inputs))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


rng = np.random.default_rng(1)
features = rng.normal(size=(300, 6)).astype("float32")
target = (features[:, :1] * features[:, 1:2] + features[:, 2:3]).astype("float32")

model = Regressor()
model.compile(
    optimizer=keras.optimizers.RMSprop(1e-3),
    loss=keras.losses.MeanSquaredError(),
    metrics=[keras.metrics.MeanAbsoluteError()],
)
history = model.fit(features, target, batch_size=25, epochs=3, verbose=2)
print("predicted:", model.predict(features[:3], verbose=0).ravel())
print(f"final loss: {history.history['loss'][-1]:.6f}")
