"""Clusters with a manager of their own (Slurm, Ray, Spark): it starts the workers, we follow."""
