"""Checkpoints as files: each is written whole or not at all, and checked before it is read."""
