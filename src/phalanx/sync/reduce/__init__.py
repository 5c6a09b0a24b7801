"""Adding up gradients: within a host, between hosts, with a codec, before the step.

Uses ``arena``, ``state`` and ``codec``; ``collective`` only where there are several hosts.
"""
