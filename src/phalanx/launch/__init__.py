"""From a plan to its processes. ``launcher.py`` has the types that all folders here use."""
