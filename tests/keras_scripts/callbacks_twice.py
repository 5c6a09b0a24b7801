"""Training is taken up again, each time with other callbacks."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(9)

rng = np.random.default_rng(9)
x = rng.normal(size=(300, 5)).astype("float32")
y = (x @ rng.normal(size=(5, 1)) + 0.5 * rng.normal(size=(300, 1))).astype("float32")

model = keras.Sequential([layers.Dense(16, activation="relu"), layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.02, momentum=0.9), loss="mse")

checkpoint_filepath = "checkpoint.model.keras"
first = model.fit(
    x,
    y,
    epochs=3,
    batch_size=32,
    validation_split=0.2,
    verbose=0,
    callbacks=[
        keras.callbacks.ModelCheckpoint(
            filepath=checkpoint_filepath, monitor="val_loss", mode="min", save_best_only=True
        ),
        keras.callbacks.EarlyStopping(monitor="val_loss", patience=2),
    ],
)
print("first:", first.history["val_loss"])


def scheduler(epoch, lr):
    return float(lr if epoch < 1 else lr * 0.5)


class Printer(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print(f"epoch {epoch}: loss {logs['loss']:.4f}, rate {logs['learning_rate']:.4f}")


second = model.fit(
    x,
    y,
    epochs=3,
    batch_size=32,
    validation_split=0.2,
    verbose=0,
    callbacks=[
        keras.callbacks.LearningRateScheduler(scheduler),
        keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True),
        keras.callbacks.TerminateOnNaN(),
        Printer(),
    ],
)
best = keras.models.load_model(checkpoint_filepath)
print("best of the first:", best.evaluate(x[240:], y[240:], verbose=0))
print(f"final loss: {second.history['loss'][-1]:.6f}")
