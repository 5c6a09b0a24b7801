"""The training loop: engine, way through the data, gradient weights, evaluation, timing."""
