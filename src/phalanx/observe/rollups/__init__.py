"""Roll-ups of a run's steps over 1, 10 and 60 seconds, which make long runs quick to draw."""
