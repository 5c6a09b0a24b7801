"""What is known of a user's script without running it: imports, packages, data sets, start-up."""
