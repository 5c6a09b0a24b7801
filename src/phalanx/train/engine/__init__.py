"""What a worker trains with: strategies, memory shared with other workers, samples, model state."""
