"""Adds up gradients within a host and between hosts, also encoded or before the step.

Uses ``arena``, ``state`` and ``codec``; ``collective`` only where there are several hosts.
"""
