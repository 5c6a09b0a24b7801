"""Ways to start the workers of a run: a file for each ``Launcher``, and parts of the SSH launcher.
A new launcher is a file here and a line in ``LAUNCHERS``."""
