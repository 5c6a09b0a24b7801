"""Clusters that have a manager of their own: Slurm, Ray. It starts the workers, and we follow."""
