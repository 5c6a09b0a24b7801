"""The results of a run, from its files: summary, history, status, ancestry."""
