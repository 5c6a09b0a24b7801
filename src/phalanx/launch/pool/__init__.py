"""What is done with a whole pool: check, init, trust, probe."""
