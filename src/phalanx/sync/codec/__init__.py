"""Codecs, which make gradients smaller on the wire. One family per file.

They turn tensors into tensors and send nothing; strategies use them through ``encoding.py``.
"""
