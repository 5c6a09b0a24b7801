"""Sends to a machine what it needs: Phalanx, the project, data, environments; ``home`` brings
results back."""
