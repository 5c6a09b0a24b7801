"""Whether this process was asked to stop, which is then the cause of any later failure.

A plain flag, because signal handlers set it: they must not take locks.
"""

from __future__ import annotations

_asked = False


def ask() -> None:
    global _asked
    _asked = True


def asked() -> bool:
    return _asked


def forget() -> None:
    """Forget the request, in a process that runs several workers one after another."""
    global _asked
    _asked = False
