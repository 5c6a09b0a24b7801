"""What runs in a worker's process before and around the script."""
