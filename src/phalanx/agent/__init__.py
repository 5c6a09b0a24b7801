"""The agent: what runs on each machine, sent over standard input, with nothing installed there.

Standard library only, Python 3.8 or newer; it imports nothing else of Phalanx.
"""
