"""What exists: machines, and the blueprint that lists them."""
