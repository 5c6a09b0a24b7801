"""Measures machines and links: the worker that answers, and what is measured."""
