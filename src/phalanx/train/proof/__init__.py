"""Whether several workers train what one process does: tried beside the training, in a child."""
