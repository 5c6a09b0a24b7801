"""Code of a worker process before and around the script: the process is bound first."""
