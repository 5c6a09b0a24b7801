"""The profile of a job: a worker measures what the steps of its script cost, and ends."""
