"""Logging in to a machine and running a command there. Knows nothing of runs or agents."""
