"""An arena across hosts: a coordinator process, its clients, and copies of the control memory.

Uses ``connect``.
"""
