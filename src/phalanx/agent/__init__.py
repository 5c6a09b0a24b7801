"""The agent: the process on each machine that starts, watches and ends the run's workers there.

Its sources are sent over SSH into the memory of that machine's Python (3.8 or newer), where nothing
is installed: it uses the standard library alone and imports nothing else of Phalanx. ``main`` is
the entry, with the table of what answers the controller's requests.
"""
