"""What the machine is and does: facts, counters, samples, ports."""
