"""Data in blocks (row groups, ranges of records), of which a worker holds a few at a time.

Readers of formats, the order in which blocks and their rows come, and remote files. Which worker
reads which block is decided in ``phalanx.policies.lanes``.
"""
