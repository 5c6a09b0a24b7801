"""The parameter store over TCP: servers and their shards, and the worker's client. Uses ``connect``
besides what ``store`` uses.
"""
