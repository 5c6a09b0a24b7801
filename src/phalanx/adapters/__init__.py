"""A framework's model and optimizer, as a strategy sees them."""
