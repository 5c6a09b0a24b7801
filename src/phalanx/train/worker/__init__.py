"""Makes a worker of all its parts, in the precision and compiled as asked."""
