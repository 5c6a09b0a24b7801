"""Whether this process was asked to stop: what fails afterwards fails because of that.

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
    """Forgets the request, for processes that are several workers, one after another."""
    global _asked
    _asked = False
