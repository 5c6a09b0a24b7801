"""The parameter store of one host: versions, admission of workers, pushes.

Uses ``arena``, ``state`` and ``reduce``, and the rules of admission in ``phalanx.rules``. Its form
over the network is in ``remote``.
"""
