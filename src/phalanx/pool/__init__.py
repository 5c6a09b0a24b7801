"""Machines: the blueprint that lists them, what they were found to be, what was measured.

Reads files and this machine; connects to none (see ``launch``). May import ``core`` and ``agent``.
"""
