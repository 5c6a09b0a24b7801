"""Machines: the blueprint that lists them, their hardware, and their measured figures.

Code here reads files and this machine, and connects to no other (see ``launch`` for that). It may
import ``core`` and ``agent``.
"""
