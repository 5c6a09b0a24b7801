"""An input pipeline of tf.data: slices, shuffled, mapped, batched and prefetched."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(3)

BATCH_SIZE = 32
AUTOTUNE = tf.data.AUTOTUNE

rng = np.random.default_rng(3)
images = rng.integers(0, 256, size=(360, 8, 8, 1)).astype("uint8")
labels = (images.reshape(360, -1)[:, :32].mean(axis=1) > 127.5).astype("int32")


def normalize(image, label):
    return tf.cast(image, tf.float32) / 255.0, label


train_ds = tf.data.Dataset.from_tensor_slices((images[:300], labels[:300]))
train_ds = train_ds.map(normalize, num_parallel_calls=AUTOTUNE)
train_ds = train_ds.cache().shuffle(300).batch(BATCH_SIZE).prefetch(AUTOTUNE)

val_ds = tf.data.Dataset.from_tensor_slices((images[300:], labels[300:]))
val_ds = val_ds.map(normalize, num_parallel_calls=AUTOTUNE).batch(BATCH_SIZE).cache()

model = keras.Sequential(
    [
        keras.Input(shape=(8, 8, 1)),
        layers.Flatten(),
        layers.Dense(32, activation="relu"),
        layers.Dense(2),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(0.003),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy()],
)
history = model.fit(train_ds, epochs=3, validation_data=val_ds)
print("validation loss:", history.history["val_loss"][-1])
print(f"final loss: {history.history['loss'][-1]:.6f}")
