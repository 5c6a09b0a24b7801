"""Codecs: how a gradient is made smaller on the wire. One family per file.

Pure: tensors in, tensors out; nothing is sent here.
"""
