"""Collectives between hosts, on the small ``Links`` protocol. Uses ``connect`` alone; what they
cost and which one is chosen: ``phalanx.policies``.
"""
