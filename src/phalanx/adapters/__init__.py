"""Whose model: what a framework's model and optimizer look like to a strategy."""
