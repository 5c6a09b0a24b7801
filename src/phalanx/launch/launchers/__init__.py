"""Ways to start the workers of a run, behind the small interface ``Launcher``."""
