"""Collectives between hosts, over the connections of ``Links``. Uses ``connect`` alone; their costs
and the choice among them are in ``phalanx.policies``.
"""
