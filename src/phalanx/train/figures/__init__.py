"""What is told of an epoch: evaluation, metrics, figures, events."""
