"""How workers agree on parameters: strategies, and the transports they are given."""
