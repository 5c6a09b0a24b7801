"""The proof that several workers train as one process does, in a forked child of a worker."""
