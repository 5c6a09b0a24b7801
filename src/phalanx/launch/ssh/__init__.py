"""Logs in to a machine and runs a command there; uses nothing of runs or agents."""
