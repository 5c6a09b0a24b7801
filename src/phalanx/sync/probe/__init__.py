"""Measures machines and links: the worker that answers, and what is measured. Uses ``connect`` and
``collective``; no training is under way.
"""
