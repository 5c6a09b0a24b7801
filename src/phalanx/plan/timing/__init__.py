"""How long training takes, in virtual time: no gradients, no torch, up to 10,000 workers.

``lockstep`` has the strategies that meet. The others go through ``free``, which picks an engine:
``heap``, or ``flows`` where links are a limit. Both give the same result for the same draws; tests
compare them with the strategies themselves.
"""
