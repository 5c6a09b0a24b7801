"""Collectives between hosts: one algorithm per file, all on the small ``Links`` protocol."""
