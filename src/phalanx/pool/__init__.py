"""Machines: the blueprint that lists them, their hardware, and their measured figures.

This package reads files and this machine, but connects to none. It imports ``core`` and ``agent``.
"""
