"""What is done with a whole pool, without a run: check, init, trust, probe."""
