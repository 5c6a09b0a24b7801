"""Codecs: how a gradient is made smaller on the wire. One family per file.

Tensors in, tensors out; nothing is sent here. ``encoding.py`` is what a strategy is given of them.
"""
