"""Adoption: a script that does not know Phalanx trains with the other workers as it is."""
