"""What a run came to, from its files: summary, history, status, ancestry."""
