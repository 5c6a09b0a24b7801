"""Codecs: how a gradient is made smaller on the wire. One family per file."""
