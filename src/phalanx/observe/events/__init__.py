"""The events of a run: their types, their writers and their readers."""
