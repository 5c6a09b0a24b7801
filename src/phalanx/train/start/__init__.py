"""The start of a worker: its environment, launchers' variables, hosts, seeds, and lifecycle."""
