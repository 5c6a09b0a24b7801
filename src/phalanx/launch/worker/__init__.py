"""Code of a worker process, before and around the script; torch is imported only once bound."""
