"""Figures of the machines: samples of this one and of agents, and what they add up to."""
