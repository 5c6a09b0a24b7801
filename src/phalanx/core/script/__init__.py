"""Finds facts about a user's script without running it: imports, packages, data sets, start-up."""
