"""Builds a worker from its parts, with the precision and compilation that were asked for."""
