"""Authenticated connections between members of a run: listening, handshake, TLS, channels."""
