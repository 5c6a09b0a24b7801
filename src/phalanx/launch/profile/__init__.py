"""Measures what a job costs on the machines of a pool, before it is planned."""
