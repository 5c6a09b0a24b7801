"""Runs on clusters whose own manager (Slurm, Ray, Spark) starts the workers."""
