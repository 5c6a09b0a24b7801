"""Which samples come next, and in what batches: leases, claims, passes over the data."""
