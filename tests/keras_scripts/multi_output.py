"""Two inputs, two outputs by name: the priority of a ticket, and the department it goes to."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(8)

num_words, num_tags, num_departments = 50, 6, 4
rng = np.random.default_rng(8)
title_data = rng.integers(1, num_words, size=(280, 7))
tags_data = rng.integers(0, 2, size=(280, num_tags)).astype("float32")
priority_targets = tags_data.mean(axis=1, keepdims=True)
dept_targets = np.eye(num_departments, dtype="float32")[title_data[:, 0] % num_departments]

title_input = keras.Input(shape=(None,), name="title")
tags_input = keras.Input(shape=(num_tags,), name="tags")
title_features = layers.Embedding(num_words, 12)(title_input)
title_features = layers.GlobalAveragePooling1D()(title_features)
x = layers.concatenate([title_features, tags_input])
priority_pred = layers.Dense(1, name="priority")(x)
department_pred = layers.Dense(num_departments, name="department")(x)
model = keras.Model(
    inputs=[title_input, tags_input],
    outputs={"priority": priority_pred, "department": department_pred},
)
model.compile(
    optimizer=keras.optimizers.RMSprop(1e-3),
    loss={
        "priority": keras.losses.BinaryCrossentropy(from_logits=True),
        "department": keras.losses.CategoricalCrossentropy(from_logits=True),
    },
    loss_weights={"priority": 1.0, "department": 0.2},
    metrics={"priority": ["mae"], "department": ["accuracy"]},
)
history = model.fit(
    {"title": title_data, "tags": tags_data},
    {"priority": priority_targets, "department": dept_targets},
    epochs=3,
    batch_size=32,
    validation_split=0.2,
)
for name, values in sorted(history.history.items()):
    print(f"{name}: {values[-1]:.6f}")
print(f"final loss: {history.history['loss'][-1]:.6f}")
