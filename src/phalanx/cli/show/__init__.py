"""What people read on the terminal: progress, tables, lines."""
