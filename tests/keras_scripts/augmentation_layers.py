"""Images are flipped and turned inside the model, while it trains."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(4)

rng = np.random.default_rng(4)
labels = rng.integers(0, 3, size=240)
images = rng.uniform(0, 255, size=(240, 16, 16, 3))
images[np.arange(240), :, :, labels] += 60
images = images.astype("float32")

data_augmentation = keras.Sequential(
    [layers.RandomFlip("horizontal"), layers.RandomRotation(0.1)], name="augmentation"
)


def make_model(input_shape, num_classes):
    inputs = keras.Input(shape=input_shape)
    x = data_augmentation(inputs)
    x = layers.Rescaling(1.0 / 255)(x)
    x = layers.Conv2D(8, 3, strides=2, padding="same")(x)
    x = layers.BatchNormalization()(x)
    x = layers.Activation("relu")(x)
    x = layers.SeparableConv2D(16, 3, padding="same")(x)
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dropout(0.25)(x)
    return keras.Model(inputs, layers.Dense(num_classes)(x))


model = make_model((16, 16, 3), 3)
model.compile(
    optimizer=keras.optimizers.Adam(1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(
    images[:200],
    labels[:200],
    epochs=2,
    batch_size=20,
    validation_data=(images[200:], labels[200:]),
)
print(f"final loss: {history.history['loss'][-1]:.6f}")
