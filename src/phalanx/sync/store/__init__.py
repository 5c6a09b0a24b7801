"""The parameter store of one host: versions, admission of workers, pushes.

Uses ``arena``, ``state`` and ``reduce``. Its form over the network is in ``remote``.
"""
