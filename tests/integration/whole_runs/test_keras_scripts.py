"""Keras scripts in the shapes of well-known examples, unchanged, on two workers."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import pytest
from commands import python, succeeds

LIMIT, NEAR = 300.0, 1e-4
OTHERWISE = {"variational autoencoder"}
"""Layers that draw random numbers draw others on each worker: these end well, with another loss."""
FILES = {"callbacks twice": ["checkpoint.model.keras"]}
HEAD = """
import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)
"""
TAIL = """
print(f"final loss: {history.history['loss'][-1]:.6f}")
"""
SCRIPTS = {
    "autoencoder": """
def pictures(count):
    found = np.zeros((count, 12, 12, 1), dtype="float32")
    for picture in found:
        top, left = rng.integers(0, 8, size=2)
        picture[top : top + 4, left : left + 5] = 1.0
    return found

clean, held = pictures(256), pictures(64)
noisy = np.clip(clean + 0.4 * rng.normal(size=clean.shape), 0.0, 1.0).astype("float32")
image = layers.Input(shape=(12, 12, 1))
x = layers.Conv2D(8, (3, 3), activation="relu", padding="same")(image)
x = layers.MaxPooling2D((2, 2), padding="same")(x)
x = layers.Conv2DTranspose(8, (3, 3), strides=2, activation="relu", padding="same")(x)
x = layers.Conv2D(1, (3, 3), activation="sigmoid", padding="same")(x)
autoencoder = keras.Model(image, x)
autoencoder.layers[1].trainable = False
autoencoder.compile(optimizer="adam", loss="binary_crossentropy")
autoencoder.fit(x=clean, y=clean, epochs=1, batch_size=32, validation_data=(held, held))
autoencoder.layers[1].trainable = True  # as a base that is tuned after its head
autoencoder.compile(optimizer="adam", loss="binary_crossentropy")
history = autoencoder.fit(x=noisy, y=clean, epochs=2, batch_size=32, shuffle=True)
print("mean pixel:", float(autoencoder.predict(held, verbose=0).mean()))
""",
    "callbacks twice": """
x = rng.normal(size=(300, 5)).astype("float32")
y = (x @ rng.normal(size=(5, 1)) + 0.5 * rng.normal(size=(300, 1))).astype("float32")
model = keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.02, momentum=0.9), loss="mse")
path, common = "checkpoint.model.keras", {"epochs": 3, "batch_size": 32, "validation_split": 0.2}
best = keras.callbacks.ModelCheckpoint(path, "val_loss", mode="min", save_best_only=True)
model.fit(x, y, callbacks=[best, keras.callbacks.EarlyStopping("val_loss", patience=2)], **common)

class Printer(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {epoch}: loss {logs['loss']:.4f}, rate {logs['learning_rate']:.4f}")

callbacks = [
    keras.callbacks.LearningRateScheduler(lambda epoch, lr: float(lr * (0.5 if epoch else 1))),
    keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True),
    keras.callbacks.TerminateOnNaN(),
    Printer(),
]
history = model.fit(x, y, callbacks=callbacks, verbose=0, **common)
print("best of the first:", keras.models.load_model(path).evaluate(x[240:], y[240:], verbose=0))
""",
    "custom train step": """
import torch

x = rng.random((320, 12)).astype("float32")
y = x.mean(axis=1, keepdims=True)

class CustomModel(keras.Model):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.loss_fn = keras.losses.MeanSquaredError()

    def train_step(self, data):
        x, y = data
        self.zero_grad()
        loss = self.loss_fn(y, self(x, training=True))
        loss.backward()
        weights = list(self.trainable_weights)
        with torch.no_grad():
            self.optimizer.apply([v.value.grad for v in weights], weights)
        self.loss_tracker.update_state(loss)
        return {m.name: m.result() for m in self.metrics}

    @property
    def metrics(self):
        return [self.loss_tracker]

inputs = keras.Input(shape=(12,))
model = CustomModel(inputs, layers.Dense(1)(layers.Dense(16, activation="relu")(inputs)))
model.compile(optimizer="adam")
history = model.fit(x, y, epochs=3)
""",
    "multi output": """
titles = rng.integers(1, 50, size=(280, 7))
tags = rng.integers(0, 2, size=(280, 6)).astype("float32")
departments = np.eye(4, dtype="float32")[titles[:, 0] % 4]
title_input, tags_input = keras.Input((None,), name="title"), keras.Input((6,), name="tags")
x = layers.GlobalAveragePooling1D()(layers.Embedding(50, 12)(title_input))
x = layers.concatenate([x, tags_input])
outputs = {"priority": layers.Dense(1)(x), "department": layers.Dense(4)(x)}
model = keras.Model([title_input, tags_input], outputs)
model.compile(
    optimizer=keras.optimizers.RMSprop(1e-3),
    loss={
        "priority": keras.losses.BinaryCrossentropy(from_logits=True),
        "department": keras.losses.CategoricalCrossentropy(from_logits=True),
    },
    loss_weights={"priority": 1.0, "department": 0.2},
    metrics={"priority": ["mae"], "department": ["accuracy"]},
)
targets = {"priority": tags.mean(axis=1, keepdims=True), "department": departments}
given = {"title": titles, "tags": tags}
history = model.fit(given, targets, epochs=3, batch_size=32, validation_split=0.2)
""",
    "py dataset": """
class Pictures(keras.utils.PyDataset):
    def __init__(self, x, y, augment=False, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y, self.augment, self.order = x, y, augment, np.arange(len(x))

    def __len__(self):
        return -(-len(self.x) // 24)

    def __getitem__(self, idx):
        chosen = self.order[24 * idx : 24 * idx + 24]
        batch = self.x[chosen].copy()
        if self.augment:
            for picture in batch:
                if np.random.rand() < 0.5:
                    picture[:] = picture[:, ::-1]
            batch += np.random.normal(scale=0.05, size=batch.shape).astype("float32")
        return batch, self.y[chosen]

    def on_epoch_end(self):
        if self.augment:
            np.random.shuffle(self.order)

y = rng.integers(0, 2, size=250)
x = (rng.normal(size=(250, 8, 8, 1)) + y[:, None, None, None]).astype("float32")
model = keras.Sequential([
    keras.Input((8, 8, 1)), layers.Conv2D(6, 3, activation="relu"), layers.Flatten(),
    layers.Dense(2, activation="softmax"),
])
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
held = Pictures(x[200:], y[200:])
history = model.fit(Pictures(x[:200], y[:200], augment=True), epochs=2, validation_data=held)
""",
    "siamese contrastive": """
x = rng.normal(size=(400, 2, 10)).astype("float32")
different = (x[:, 0, 0] * x[:, 1, 0] < 0).astype("float32")

class Siamese(keras.Model):
    def __init__(self):
        super().__init__()
        self.embedding = keras.Sequential([layers.Dense(16, activation="tanh"), layers.Dense(4)])

    def call(self, inputs):
        one, other = self.embedding(inputs[0]), self.embedding(inputs[1])
        square = ops.sum(ops.square(one - other), axis=1)
        return ops.sqrt(ops.maximum(square, keras.backend.epsilon()))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        near, far = (1 - y) * ops.square(y_pred), y * ops.square(ops.maximum(1 - y_pred, 0))
        return ops.mean(near + far)

model = Siamese()
model.compile(optimizer="rmsprop")
history = model.fit([x[:, 0], x[:, 1]], different, batch_size=16, epochs=3)
""",
    "text classification": """
sentiments = rng.integers(0, 2, size=260)
words = [rng.integers(1 + 20 * s, 40 + 20 * s, size=rng.integers(4, 16)) for s in sentiments]
x, y = keras.utils.pad_sequences([list(w) for w in words], maxlen=12), sentiments
inputs = keras.Input(shape=(None,), dtype="int32")
h = layers.Embedding(60, 8, mask_zero=True)(inputs)
h = layers.Bidirectional(layers.LSTM(6, return_sequences=True))(h)
h = layers.Bidirectional(layers.GRU(6))(h)
model = keras.Model(inputs, layers.Dense(1, activation="sigmoid")(h))
model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
history = model.fit(x[:200], y[:200], batch_size=32, epochs=2, validation_data=(x[200:], y[200:]))
""",
    "tf data pipeline": """
import tensorflow as tf

images = rng.integers(0, 256, size=(360, 8, 8, 1)).astype("uint8")
labels = (images.reshape(360, -1)[:, :32].mean(axis=1) > 127.5).astype("int32")
given = tf.data.Dataset.from_tensor_slices((images, labels))
given = given.map(lambda image, label: (tf.cast(image, tf.float32) / 255.0, label))
given = given.cache().shuffle(300).batch(32).prefetch(tf.data.AUTOTUNE)
model = keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), layers.Dense(2)])
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(keras.optimizers.Adam(0.003), loss)
history = model.fit(given, epochs=3)
""",
    "variational autoencoder": """
class Sampling(layers.Layer):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        mean, log_var = inputs
        divergence = -0.5 * (1 + log_var - ops.square(mean) - ops.exp(log_var))
        self.add_loss(0.05 * ops.mean(ops.sum(divergence, axis=1)))
        noise = keras.random.normal(shape=ops.shape(mean), seed=self.seed_generator)
        return mean + ops.exp(0.5 * log_var) * noise

inputs = keras.Input(shape=(20,))
x = layers.Dense(16, activation="relu")(inputs)
z = Sampling()([layers.Dense(2)(x), layers.Dense(2)(x)])
outputs = layers.Dense(20, activation="sigmoid")(layers.Dense(16, activation="relu")(z))
vae = keras.Model(inputs, outputs)
vae.compile(optimizer=keras.optimizers.Adam(), loss="binary_crossentropy")
factors = rng.normal(size=(300, 2))
data = (1 / (1 + np.exp(-3 * factors @ rng.normal(size=(2, 20))))).astype("float32")
history = vae.fit(data, data, epochs=3, batch_size=30)
""",
}
VARIABLES = {
    "KERAS_BACKEND": "torch", "KERAS_TORCH_DEVICE": "cpu", "CUDA_VISIBLE_DEVICES": "",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}  # fmt: skip


def _loss(output: str) -> float:
    """The first worker prints it; what the others print is in their logs."""
    (found,) = re.findall(r"final loss: (\S+)", output)
    return float(found)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_as_others_write_it(tmp_path: Path, name: str) -> None:
    for module in ("keras", *(["tensorflow"] if name == "tf data pipeline" else [])):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    script, plain = tmp_path / "train.py", tmp_path / "plain"
    script.write_text(HEAD + SCRIPTS[name] + TAIL)
    words = ("run", "train.py", "--workers", "2", "--strategy", "allreduce")
    ended = succeeds(*words, cwd=tmp_path, limit=LIMIT, **VARIABLES)
    files = sorted(
        path.name for path in tmp_path.iterdir() if path.name not in ("runs", "train.py")
    )
    assert files == FILES.get(name, [])
    plain.mkdir()
    alone = python(str(script), cwd=plain, env={**os.environ, **VARIABLES}, timeout=LIMIT)
    assert alone.returncode == 0, alone.stderr
    near = {"rel": 0.05} if name in OTHERWISE else {"abs": NEAR}
    assert _loss(ended.stdout + ended.stderr) == pytest.approx(_loss(alone.stdout), **near)
