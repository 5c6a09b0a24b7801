"""One machine as the controller sees it: the link to its agent, a session, its files and clock."""
