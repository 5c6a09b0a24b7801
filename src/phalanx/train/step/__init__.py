"""From a loss to updated parameters: the step, the weight of its gradients, and what is watched."""
