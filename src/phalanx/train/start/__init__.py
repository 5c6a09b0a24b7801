"""Where a worker finds itself: environment, launchers' variables, hosts, seeds, its lifecycle."""
