"""A process that has many files open."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator


@contextlib.contextmanager
def many_open(number: int = 1100) -> Iterator[None]:
    """What is opened inside gets descriptors that ``select.select`` does not know."""
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before, 2 * number), most))
    first = os.open(os.devnull, os.O_RDONLY)
    held = [first, *(os.dup(first) for _ in range(number))]
    try:
        yield
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (before, most))
