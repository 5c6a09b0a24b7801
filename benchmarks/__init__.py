"""Benchmarks: one JSON line per figure, measured in alternated blocks of one run. Not tests."""
