"""Collectives between hosts: what they cost, which one is chosen, on the small ``Links`` protocol.
Uses ``connect`` alone.
"""
