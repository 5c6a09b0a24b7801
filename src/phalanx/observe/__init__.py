"""What happens: the events, who writes them, who reads them, and what they add up to."""
