"""What happens in runs: events, samples of machines, and the summaries made from both."""
