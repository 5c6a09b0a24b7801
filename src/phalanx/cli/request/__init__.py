"""From options to what is run: options, values, requests, studies."""
