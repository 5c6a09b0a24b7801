"""One file per data set format; each source returns a train and a test set."""
