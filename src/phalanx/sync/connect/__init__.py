"""Authenticated connections between members of a run: listening, handshake, TLS, channels. Uses no
other room, and no torch.
"""
