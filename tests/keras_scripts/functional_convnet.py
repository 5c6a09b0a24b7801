"""A small convolutional network that tells synthetic digits apart."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(812)

num_classes = 10
input_shape = (14, 14, 1)

rng = np.random.default_rng(0)
labels = rng.integers(0, num_classes, size=400)
prototypes = rng.uniform(size=(num_classes, *input_shape))
images = prototypes[labels] + rng.normal(scale=0.3, size=(400, *input_shape))

x_train, x_test = images[:320].astype("float32"), images[320:].astype("float32")
y_train = keras.utils.to_categorical(labels[:320], num_classes)
y_test = keras.utils.to_categorical(labels[320:], num_classes)
print("x_train shape:", x_train.shape)

inputs = keras.Input(shape=input_shape)
x = layers.Conv2D(8, kernel_size=(3, 3), activation="relu")(inputs)
x = layers.MaxPooling2D(pool_size=(2, 2))(x)
x = layers.Conv2D(16, kernel_size=(3, 3), activation="relu")(x)
x = layers.Flatten()(x)
outputs = layers.Dense(num_classes, activation="softmax")(x)
model = keras.Model(inputs, outputs)
model.summary()

model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=32, epochs=3, validation_split=0.1)

score = model.evaluate(x_test, y_test, verbose=0)
print("test accuracy:", score[1])
print(f"final loss: {score[0]:.6f}")
