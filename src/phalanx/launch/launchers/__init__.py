"""Ways to start the workers of a run, behind the interface ``Launcher``: one file each, and what
the one over SSH starts on machines. A new launcher is a file here and a line in ``LAUNCHERS``."""
