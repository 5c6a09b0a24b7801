"""Adding up gradients: within a host, between hosts, with a codec; teams of workers.

Uses ``arena``, ``state`` and ``codec``; ``collective`` only where there are several hosts.
"""
