"""What workers share: memory, barriers, locks, clocks, teams. Processes and threads of one host.

The same across hosts is in ``remote``, behind the protocols ``Arena`` and ``Hosts``. Uses no other
room of ``sync``, except for types.
"""
