"""Figures of the machines: samples of this machine and from agents, and their averages."""
