"""Decisions that all workers must make alike: rendezvous, commands, shares."""
