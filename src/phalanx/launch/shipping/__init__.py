"""What travels to a machine and back: Phalanx itself, the project, data, environments, results."""
