"""An arena across hosts: a coordinator process, its clients, and mirrored memory."""
