"""Verbs that answer before time is spent: what to train on, and how."""
