"""``phalanx watch``, and what it starts: the server of the pages, and agents on idle machines."""
