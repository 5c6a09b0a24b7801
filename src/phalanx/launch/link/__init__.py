"""The controller's connection to the agent of one machine: requests, answers, waits, losses."""
