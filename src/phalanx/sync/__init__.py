"""How workers agree on parameters. From below: ``connect`` (connections), ``collective``, ``arena``
(shared memory, barriers), ``state`` (what is trained), ``codec``, ``strategy.py`` (what a strategy
is, and what it is given), ``reduce``, ``store``, and at the top ``strategies`` and ``hosts``. A
worker of one host imports none of ``connect``, ``collective``, ``hosts`` and the two ``remote``
rooms.
"""
