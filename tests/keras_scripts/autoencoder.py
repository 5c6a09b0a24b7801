"""A convolutional autoencoder takes the noise off pictures."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(6)
rng = np.random.default_rng(6)


def pictures(count):
    """White rectangles on black."""
    found = np.zeros((count, 12, 12, 1), dtype="float32")
    for picture in found:
        top, left = rng.integers(0, 8, size=2)
        picture[top : top + 4, left : left + 5] = 1.0
    return found


def noise(array):
    return np.clip(array + 0.4 * rng.normal(size=array.shape), 0.0, 1.0).astype("float32")


train_data, test_data = pictures(256), pictures(64)
noisy_train_data, noisy_test_data = noise(train_data), noise(test_data)

image = layers.Input(shape=(12, 12, 1))
x = layers.Conv2D(8, (3, 3), activation="relu", padding="same")(image)
x = layers.MaxPooling2D((2, 2), padding="same")(x)
x = layers.Conv2D(8, (3, 3), activation="relu", padding="same")(x)
x = layers.Conv2DTranspose(8, (3, 3), strides=2, activation="relu", padding="same")(x)
x = layers.Conv2D(1, (3, 3), activation="sigmoid", padding="same")(x)

autoencoder = keras.Model(image, x)
autoencoder.compile(optimizer="adam", loss="binary_crossentropy")

autoencoder.fit(
    x=train_data,
    y=train_data,
    epochs=1,
    batch_size=32,
    shuffle=True,
    validation_data=(test_data, test_data),
)
history = autoencoder.fit(
    x=noisy_train_data,
    y=train_data,
    epochs=2,
    batch_size=32,
    shuffle=True,
    validation_data=(noisy_test_data, test_data),
)
predictions = autoencoder.predict(noisy_test_data, verbose=0)
print("mean pixel:", float(predictions.mean()))
print(f"final loss: {history.history['loss'][-1]:.6f}")
