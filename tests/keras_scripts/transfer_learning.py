"""A frozen base gets a new head; then all of it is tuned at a low rate."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(7)

rng = np.random.default_rng(7)
labels = rng.integers(0, 2, size=(240, 1))
images = rng.normal(size=(240, 12, 12, 3)) + 0.4 * labels[:, :, None, None]
images, labels = images.astype("float32"), labels.astype("float32")
train, validation = (images[:200], labels[:200]), (images[200:], labels[200:])

base_model = keras.Sequential(
    [
        keras.Input(shape=(12, 12, 3)),
        layers.Conv2D(8, 3, activation="relu"),
        layers.Conv2D(8, 3, strides=2),
        layers.BatchNormalization(),
        layers.Activation("relu"),
    ],
    name="base",
)
base_model.trainable = False

inputs = keras.Input(shape=(12, 12, 3))
x = base_model(inputs, training=False)
x = layers.GlobalAveragePooling2D()(x)
outputs = layers.Dense(1)(x)
model = keras.Model(inputs, outputs)
model.summary(show_trainable=True)

model.compile(
    optimizer=keras.optimizers.Adam(),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy()],
)
print("fitting the top layer")
model.fit(*train, epochs=2, batch_size=20, validation_data=validation)

base_model.trainable = True
model.compile(
    optimizer=keras.optimizers.Adam(1e-4),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy()],
)
print("fitting the end-to-end model")
history = model.fit(*train, epochs=2, batch_size=20, validation_data=validation)
print("test:", model.evaluate(*validation, verbose=0))
print(f"final loss: {history.history['loss'][-1]:.6f}")
