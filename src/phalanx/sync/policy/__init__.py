"""Decisions: batch shares, stragglers, switch points; which worker has which samples."""
