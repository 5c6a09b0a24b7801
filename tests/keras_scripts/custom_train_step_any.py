"""A training step of one's own on whichever backend Keras has."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(2)

if keras.backend.backend() == "tensorflow":
    import tensorflow as tf

    class CustomModel(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                y_pred = self(x, training=True)
                loss = self.compute_loss(y=y, y_pred=y_pred)
            gradients = tape.gradient(loss, self.trainable_variables)
            self.optimizer.apply(gradients, self.trainable_variables)
            for metric in self.metrics:
                given = (loss,) if metric.name == "loss" else (y, y_pred)
                metric.update_state(*given)
            return {m.name: m.result() for m in self.metrics}

elif keras.backend.backend() == "jax":
    import jax

    class CustomModel(keras.Model):
        def loss_and_updates(self, trainable, non_trainable, x, y):
            y_pred, non_trainable = self.stateless_call(trainable, non_trainable, x, training=True)
            return self.compute_loss(x, y, y_pred), (y_pred, non_trainable)

        def train_step(self, state, data):
            trainable, non_trainable, opt_vars, metric_vars = state
            x, y = data
            grad_fn = jax.value_and_grad(self.loss_and_updates, has_aux=True)
            (loss, (y_pred, non_trainable)), grads = grad_fn(trainable, non_trainable, x, y)
            trainable, opt_vars = self.optimizer.stateless_apply(opt_vars, grads, trainable)
            logs, updated = {}, []
            for metric in self.metrics:
                these = metric_vars[len(updated) : len(updated) + len(metric.variables)]
                given = (loss,) if metric.name == "loss" else (y, y_pred)
                these = metric.stateless_update_state(these, *given)
                logs[metric.name] = metric.stateless_result(these)
                updated += these
            return logs, (trainable, non_trainable, opt_vars, updated)

else:
    CustomModel = keras.Model

inputs = keras.Input(shape=(12,))
hidden = layers.Dense(16, activation="relu")(inputs)
model = CustomModel(inputs, layers.Dense(1)(hidden))
model.compile(optimizer="adam", loss="mse")

rng = np.random.default_rng(2)
features = rng.random((320, 12)).astype("float32")
history = model.fit(features, features.mean(axis=1, keepdims=True), epochs=3)
print(f"final loss: {history.history['loss'][-1]:.6f}")
