"""Reads what a run writes while it is written, a bounded part at a time."""
