"""From a loss to updated parameters: the step, what its gradients count, and what is watched."""
