"""Whether a run was worth it: contributions, stragglers, what fewer machines would do."""
