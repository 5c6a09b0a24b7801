"""A look at where a thread is keeps nothing alive that the thread has dropped meanwhile."""

from __future__ import annotations

import os
import threading
import weakref

import pytest

from phalanx.observe.events.emit import StackWatch


class Model:
    pass


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="nothing is shown without memfd")
def test_what_the_script_drops_during_a_look_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    dropped, looks = threading.Event(), threading.Event()
    made: list[weakref.ref[Model]] = []
    watch, alive = StackWatch(), []

    def train() -> None:
        model = Model()
        made.append(weakref.ref(model))
        looker.start()
        assert looks.wait(30.0)

    def written(*_: object) -> int:
        """The system call, in which other threads run."""
        looks.set()
        assert dropped.wait(30.0)
        alive.append(made[0]() is not None)
        return 0

    monkeypatch.setattr(os, "pwrite", written)
    looker = threading.Thread(target=watch.look)
    train()
    dropped.set()
    looker.join(30.0)
    watch.close()
    assert alive == [False]
    assert any("train" in place for place in watch.stack)
