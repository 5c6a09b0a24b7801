"""The pages of ``phalanx watch``: feeds made from a run's files, and a server on loopback."""
