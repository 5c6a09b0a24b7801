"""How a process left is a value on the wire; its words are for people alone."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest

from phalanx.core import stopping
from phalanx.core.errors import MachineLost
from phalanx.sync.arena.remote import coordinator_messages as m
from phalanx.sync.arena.remote.remote_arena import Mirror


@pytest.fixture(autouse=True)
def _not_stopping() -> Iterator[None]:
    stopping.forget()
    yield
    stopping.forget()


def hear_of(ending: m.Ending, because: str = "") -> str:
    arena = Mirror.__new__(Mirror)
    arena.lost, arena.survives = set(), lambda lost: False
    with pytest.raises(MachineLost) as caught:
        arena._hear_of(m.Lost(1, "m1", "192.0.2.1", ending=ending, because=because))
    return caught.value.cause


def test_a_worker_that_was_asked_to_stop_stops_the_others() -> None:
    hear_of(m.Ending.STOPPED)
    assert stopping.asked()


def test_words_decide_nothing() -> None:
    assert hear_of(m.Ending.FAILED, "it was asked to stop").endswith("it was asked to stop")
    assert not stopping.asked()
    assert hear_of(m.Ending.GONE).endswith("is gone")
    assert hear_of(m.Ending.DONE).endswith("has ended")


@pytest.mark.parametrize("ending", list(m.Ending))
def test_every_ending_travels(ending: m.Ending) -> None:
    sent = m.Bye(ending, "why")
    assert m.request_decoder.decode(m.encode(sent)) == sent


def test_an_unknown_ending_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        m.request_decoder.decode(m.encode(m.Bye()).replace(b"\xa4done", b"\xa4gong"))
