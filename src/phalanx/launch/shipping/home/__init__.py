"""What comes back from machines: results, checkpoints."""
