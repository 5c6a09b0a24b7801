"""Sequences of word numbers, padded and masked, through a bidirectional recurrent network."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(5)

max_features = 60
maxlen = 12

rng = np.random.default_rng(5)
reviews, sentiments = [], []
for _ in range(260):
    positive = int(rng.integers(0, 2))
    length = int(rng.integers(4, 16))
    low, high = (1, 40) if positive else (20, max_features)
    reviews.append(rng.integers(low, high, size=length).tolist())
    sentiments.append(positive)
x = keras.utils.pad_sequences(reviews, maxlen=maxlen)
y = np.array(sentiments)
x_train, y_train, x_val, y_val = x[:200], y[:200], x[200:], y[200:]

inputs = keras.Input(shape=(None,), dtype="int32")
h = layers.Embedding(max_features, 8, mask_zero=True)(inputs)
h = layers.Bidirectional(layers.LSTM(6, return_sequences=True))(h)
h = layers.Bidirectional(layers.GRU(6))(h)
outputs = layers.Dense(1, activation="sigmoid")(h)
model = keras.Model(inputs, outputs)

model.compile(optimizer="adam", loss="binary_crossentropy", metrics=["accuracy"])
history = model.fit(x_train, y_train, batch_size=32, epochs=2, validation_data=(x_val, y_val))
print("validation accuracy:", history.history["val_accuracy"][-1])
print(f"final loss: {history.history['loss'][-1]:.6f}")
