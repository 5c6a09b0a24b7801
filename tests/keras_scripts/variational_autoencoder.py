"""A variational autoencoder: the sampling layer adds the divergence to the loss."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(11)


class Sampling(layers.Layer):
    """Draws a point of the latent space, and adds how far it is from a normal distribution."""

    def __init__(self, weight=0.05, **kwargs):
        super().__init__(**kwargs)
        self.weight = weight
        self.seed_generator = keras.random.SeedGenerator(1337)

    def call(self, inputs):
        z_mean, z_log_var = inputs
        divergence = -0.5 * (1 + z_log_var - ops.square(z_mean) - ops.exp(z_log_var))
        self.add_loss(self.weight * ops.mean(ops.sum(divergence, axis=1)))
        epsilon = keras.random.normal(shape=ops.shape(z_mean), seed=self.seed_generator)
        return z_mean + ops.exp(0.5 * z_log_var) * epsilon


latent_dim = 2
encoder_inputs = keras.Input(shape=(20,))
x = layers.Dense(16, activation="relu")(encoder_inputs)
z_mean = layers.Dense(latent_dim, name="z_mean")(x)
z_log_var = layers.Dense(latent_dim, name="z_log_var")(x)
z = Sampling()([z_mean, z_log_var])
encoder = keras.Model(encoder_inputs, z, name="encoder")

latent_inputs = keras.Input(shape=(latent_dim,))
x = layers.Dense(16, activation="relu")(latent_inputs)
decoder = keras.Model(latent_inputs, layers.Dense(20, activation="sigmoid")(x), name="decoder")

vae = keras.Model(encoder_inputs, decoder(encoder(encoder_inputs)), name="vae")
vae.compile(optimizer=keras.optimizers.Adam(), loss="binary_crossentropy")

rng = np.random.default_rng(11)
factors = rng.normal(size=(300, 2))
data = (1 / (1 + np.exp(-3 * factors @ rng.normal(size=(2, 20))))).astype("float32")
history = vae.fit(data, data, epochs=3, batch_size=30)
print(f"final loss: {history.history['loss'][-1]:.6f}")
