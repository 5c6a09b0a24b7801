"""What the pages show of runs and machines, as plain values."""
