"""Twin embeddings, whose distance a contrastive loss of the model's own judges."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(12)

rng = np.random.default_rng(12)
centres = rng.normal(size=(5, 10))
classes = rng.integers(0, 5, size=200)
points = (centres[classes] + 0.3 * rng.normal(size=(200, 10))).astype("float32")


def make_pairs(x, labels):
    pairs, same = [], []
    for i, label in enumerate(labels):
        for alike in (True, False):
            j = rng.choice(np.flatnonzero((labels == label) == alike))
            pairs.append((x[i], x[j]))
            same.append(float(not alike))
    pairs = np.array(pairs)
    return pairs[:, 0], pairs[:, 1], np.array(same, dtype="float32")


left, right, different = make_pairs(points, classes)


class Siamese(keras.Model):
    def __init__(self, margin=1.0):
        super().__init__()
        self.embedding = keras.Sequential([layers.Dense(16, activation="tanh"), layers.Dense(4)])
        self.margin = margin

    def call(self, inputs):
        one, other = self.embedding(inputs[0]), self.embedding(inputs[1])
        square = ops.sum(ops.square(one - other), axis=1)
        return ops.sqrt(ops.maximum(square, keras.backend.epsilon()))

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        near = (1 - y) * ops.square(y_pred)
        far = y * ops.square(ops.maximum(self.margin - y_pred, 0))
        return ops.mean(near + far)


model = Siamese()
model.compile(optimizer="rmsprop")
history = model.fit([left, right], different, batch_size=16, epochs=3)
print("distances:", model.predict([left[:4], right[:4]], verbose=0))
print(f"final loss: {history.history['loss'][-1]:.6f}")
