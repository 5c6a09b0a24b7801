"""Decisions: batch shares, stragglers, switch points; which worker has which samples. Pure but for
the two that keep leases in an arena.
"""
