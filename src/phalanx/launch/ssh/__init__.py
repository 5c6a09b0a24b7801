"""Logging in to a machine and running a command there."""
