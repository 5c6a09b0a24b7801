"""Profiles of a few steps, operator by operator: how workers record them, and what they say."""
