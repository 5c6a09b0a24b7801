"""What workers read: sources, the ledger that gives each sample to one worker, prefetch."""
