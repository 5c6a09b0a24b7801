"""The folder of a run: the names of its files, its key, its owner. Nothing of training."""
