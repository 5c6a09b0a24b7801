"""How workers agree on parameters. From below: ``arena`` (shared memory, barriers) and ``connect``
(connections), ``collective`` and ``codec``, ``state`` (what is trained), ``reduce`` and ``store``
(how it is brought together), ``strategies``. A worker of one host imports none of ``connect``,
``collective`` and the two ``remote`` rooms.
"""
