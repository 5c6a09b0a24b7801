"""Adoption: a script that never calls Phalanx trains with other workers, unchanged."""
