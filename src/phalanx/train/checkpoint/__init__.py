"""Checkpointer as files: written whole or not at all, checked before they are read."""
