"""Reports on each epoch: evaluation, metrics, figures, events."""
