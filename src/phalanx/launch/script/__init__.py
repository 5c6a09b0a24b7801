"""Checks of the user's script before anything is started."""
