"""The folder of a run: the names of its files, its key, who made it. Knows nothing of training."""
