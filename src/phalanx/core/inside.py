"""Whether a block of code is being executed: cheaper than a generator, once in every step."""

from __future__ import annotations


class Inside:
    """``with inside:`` as often as wanted, also one in another; true inside."""

    def __init__(self) -> None:
        self._depth = 0

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1

    def __bool__(self) -> bool:
        return self._depth > 0
