"""Keras models, whatever their backend, as the engine sees them."""
