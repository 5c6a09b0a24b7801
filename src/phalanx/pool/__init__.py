"""Machines: the blueprint that lists them, their hardware, and their measured figures.

Code here reads files and this machine only; ``launch`` connects to others.
"""
