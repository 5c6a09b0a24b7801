"""What may be said beside an error of the script's own, by whoever saw what led to it."""

from __future__ import annotations

import threading
from collections.abc import Callable

Adviser = Callable[[BaseException], str]
_advisers: dict[int, Adviser] = {}


def be_advised_by(adviser: Adviser) -> None:
    """Of errors in this thread; the newest adviser is asked."""
    _advisers[threading.get_ident()] = adviser


def advice_on(error: BaseException) -> str:
    adviser = _advisers.get(threading.get_ident())
    return adviser(error) if adviser is not None else ""
