"""One machine as the controller sees it: its address, session and files, and reconnecting."""
