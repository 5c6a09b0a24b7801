"""Training scripts of the benchmarks."""
