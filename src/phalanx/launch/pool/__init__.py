"""Commands on a whole pool, without a run: check, init, trust, probe."""
