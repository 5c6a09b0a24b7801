"""One collective algorithm per file, its paper cited."""
