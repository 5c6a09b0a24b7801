"""The machines of a run as the controller sees them: sessions, agents, files."""
