"""The worker: the public API, its loop, and what it learns about where it runs."""
