"""Batches made by a PyDataset, which augments them with NumPy."""

import math

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(10)


class Pictures(keras.utils.PyDataset):
    def __init__(self, x, y, batch_size, augment=False, **kwargs):
        super().__init__(**kwargs)
        self.x, self.y, self.batch_size, self.augment = x, y, batch_size, augment
        self.order = np.arange(len(x))

    def __len__(self):
        return math.ceil(len(self.x) / self.batch_size)

    def __getitem__(self, idx):
        low = idx * self.batch_size
        chosen = self.order[low : min(low + self.batch_size, len(self.x))]
        batch_x, batch_y = self.x[chosen].copy(), self.y[chosen]
        if self.augment:
            for picture in batch_x:
                if np.random.rand() < 0.5:
                    picture[:] = picture[:, ::-1]
            batch_x += np.random.normal(scale=0.05, size=batch_x.shape).astype("float32")
        return batch_x, batch_y

    def on_epoch_end(self):
        if self.augment:
            np.random.shuffle(self.order)


rng = np.random.default_rng(10)
y = rng.integers(0, 2, size=250)
x = (rng.normal(size=(250, 8, 8, 1)) + y[:, None, None, None]).astype("float32")

model = keras.Sequential(
    [
        keras.Input((8, 8, 1)),
        layers.Conv2D(6, 3, activation="relu"),
        layers.Flatten(),
        layers.Dense(2, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(
    Pictures(x[:200], y[:200], 24, augment=True),
    epochs=2,
    validation_data=Pictures(x[200:], y[200:], 24),
)
print(f"final loss: {history.history['loss'][-1]:.6f}")
