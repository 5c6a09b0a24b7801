"""What a child that goes on alone reads: whole batches, in the order that all workers have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from phalanx.data.reader import Reader
from phalanx.train.adopt.loader_pass import LoaderPass
from phalanx.train.adopt.random_streams import Streams
from phalanx.train.proof.checks import Checks


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
        self._given += 1  # also where there is none: a sampler may draw when it has no more
        try:
            batch = next(self._batches)[1]
        except StopIteration:
            self._streams.leave_pass()
            raise
        self._checks.given()
        return batch

    def __del__(self) -> None:
        """The script has left its loop."""
        self._streams.leave_pass()
        self._drawn.leave(self._given)


class CheckedPass(Iterator[Any]):
    """A pass as the script's loop takes it: at any batch a child may begin to go on alone."""

    def __init__(
        self, batches: Iterator[Any], checks: Checks, alone: Callable[[int], Iterator[Any]]
    ) -> None:
        self._batches, self._checks, self._alone = batches, checks, alone
        self._given, self._is_child = 0, False

    def __next__(self) -> Any:
        if not self._is_child and (self._checks.is_child or self._checks.fork()):
            self._is_child, self._batches = True, self._alone(self._given)
        self._given += 1
        return next(self._batches)
