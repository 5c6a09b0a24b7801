"""What fit() does with a batch is written out, in PyTorch."""

import os

os.environ["KERAS_BACKEND"] = "torch"

import keras
import numpy as np
import torch
from keras import layers

keras.utils.set_random_seed(2)


class CustomModel(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.mae_metric = keras.metrics.MeanAbsoluteError(name="mae")
        self.loss_fn = keras.losses.MeanSquaredError()

    def train_step(self, data):
        x, y = data
        self.zero_grad()
        y_pred = self(x, training=True)
        loss = self.loss_fn(y, y_pred)
        loss.backward()

        trainable_weights = list(self.trainable_weights)
        gradients = [v.value.grad for v in trainable_weights]
        with torch.no_grad():
            self.optimizer.apply(gradients, trainable_weights)

        self.loss_tracker.update_state(loss)
        self.mae_metric.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}

    @property
    def metrics(self):
        return [self.loss_tracker, self.mae_metric]


inputs = keras.Input(shape=(12,))
hidden = layers.Dense(16, activation="relu")(inputs)
model = CustomModel(inputs, layers.Dense(1)(hidden))
model.compile(optimizer="adam")

rng = np.random.default_rng(2)
x = rng.random((320, 12)).astype("float32")
y = x.mean(axis=1, keepdims=True)
history = model.fit(x, y, epochs=3, batch_size=32)
print(f"final loss: {history.history['loss'][-1]:.6f}")
