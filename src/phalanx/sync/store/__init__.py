"""The parameter store of one host: versions and pushes.

Uses ``arena``, ``state``, ``codec`` and ``reduce``. The store over the network is in ``remote``.
"""
