"""A training on several machines: who takes part, how to reach them, where parameters are kept."""
