"""Figures of the machines: samples, the monitor, sums over machines."""
