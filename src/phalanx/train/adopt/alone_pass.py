"""What a child that goes on alone reads: whole batches, in the order that all workers have."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from phalanx.data.reader import Reader
from phalanx.train.adopt.loader_pass import LoaderPass
from phalanx.train.proof.checks import Checks
from phalanx.train.start.random_streams import Streams


class AlonePass(Iterator[Any]):
    """A pass of the child, after so many batches that were ``given`` to the worker."""

    def __init__(
        self,
        reader: Reader,
        drawn: LoaderPass,
        epoch: int,
        given: int,
        checks: Checks,
        streams: Streams,
    ) -> None:
        batches = enumerate(drawn.order[given * drawn.batch :].split(drawn.batch))
        self._batches = reader.stream(batches, epoch)
        self._drawn, self._given, self._checks, self._streams = drawn, given, checks, streams
        streams.enter_pass()

    def __next__(self) -> Any:
        self._given += 1
        try:
            batch = next(self._batches)[1]
        except StopIteration:
            self._streams.leave_pass()
            self._drawn.own.end()
            raise
        self._drawn.own.give(self._given)
        self._checks.given()
        return batch

    def __del__(self) -> None:
        """The script has left its loop."""
        self._streams.leave_pass()
