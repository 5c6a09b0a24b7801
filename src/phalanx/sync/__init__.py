"""How workers agree on parameters. Lowest first: ``connect`` (connections), ``collective``,
``arena`` (shared memory, barriers), ``state`` (what is trained), ``codec``, ``strategy.py`` (the
interface of strategies), ``reduce``, ``store``, and at the top ``strategies`` and ``hosts``. In a
training on one host, workers import none of ``connect``, ``collective``, ``hosts`` and the two
``remote`` folders.
"""
