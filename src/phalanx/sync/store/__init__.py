"""The parameter store of one host: versions, admission of workers, pushes.

Its form over the network is in ``remote``.
"""
