"""Code that runs in a worker process before and around the script. No torch until it is bound."""
