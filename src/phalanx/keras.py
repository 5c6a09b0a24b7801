"""Keras models: ``phalanx.keras.join(model)``, then plain ``model.fit``."""

from phalanx.train.keras.adoption import join

__all__ = ["join"]
