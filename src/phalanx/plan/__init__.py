"""Plan runs: which machines, how many workers, which strategy. Pure functions, no torch."""
