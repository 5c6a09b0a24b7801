"""Scripts that `phalanx demo` runs; ordinary training scripts, never imported."""
