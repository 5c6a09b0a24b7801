"""What travels to a machine: Phalanx itself, the project, data, environments; ``home`` brings
results back."""
