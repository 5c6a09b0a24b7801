"""Text for people on the terminal: progress, tables, lines."""
