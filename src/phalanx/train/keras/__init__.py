"""``model.fit`` of Keras, on all the workers of the run."""
