"""A lab: several emulated machines on this host, for tests, courses and demonstrations."""
