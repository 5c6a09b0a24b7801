"""The machine: what it is (facts), what it uses (counters, usage, samples), its ports.

The controller reads its own machine with these modules too.
"""
